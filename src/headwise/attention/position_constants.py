"""Tensors that depend on lengths only, such as sinusoids and buckets of positions: computed once in eager mode.

For short sequences, computing them takes longer than attention.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise import _compat

#: The cache keeps the tensors that were used last, up to this number, and none that is larger than this (bytes).
MAX_TENSORS, MAX_BYTES = 32, 2**24

_cache: OrderedDict[Any, Tensor] = OrderedDict()
_lock = threading.Lock()


def position_constant(build: Callable[..., Tensor], *arguments: Any, device: torch.device) -> Tensor:
    """Return build(*arguments, device=device), in plain eager mode from a cache. The result must not be changed.

    Args:
        build: a function whose result depends on its arguments only.
        arguments: its hashable arguments.
        device: the device of the result.
    """
    if not can_cache(device):
        return build(*arguments, device=device)
    key = (build, arguments, device)
    with _lock:
        tensor = _cache.get(key)
        if tensor is not None:
            _cache.move_to_end(key)
            return tensor
    with torch.inference_mode(False), torch.no_grad():  # autograd rejects tensors of inference mode
        tensor = build(*arguments, device=device)
    if tensor.nbytes <= MAX_BYTES:
        with _lock:
            _cache[key] = tensor
            while len(_cache) > MAX_TENSORS:
                _cache.popitem(last=False)
    return tensor


def can_cache(device: torch.device) -> bool:
    """Return whether tensors are neither traced nor recorded in a CUDA graph, which would read freed memory."""
    if torch.compiler.is_compiling() or _compat.functorch_is_active() or _compat.num_dispatch_modes():
        return False
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()
