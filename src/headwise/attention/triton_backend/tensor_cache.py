"""Caches of what depends on the values of a tensor, such as a mask, which the layers of a model share."""

from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwise.attention.position_constants import can_cache

#: The version of a tensor, which counts its changes in place, and what was computed from this version, by stream.
_results: MutableMapping[Tensor, tuple[int, defaultdict[int, dict[Any, Any]]]] = WeakTensorKeyDictionary()


def get_cache(x: Tensor | None) -> dict[Any, Any]:
    """Return the cache of what depends on this tensor only; a change of the tensor empties it. It is new for None."""
    if x is None or x.is_inference() or not can_cache(x.device):
        return {}
    version, by_stream = _results.get(x, (None, None))
    if by_stream is None or version != x._version:
        by_stream = defaultdict[int, dict[Any, Any]](dict)
        _results[x] = x._version, by_stream
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    return by_stream[stream]
