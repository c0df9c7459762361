"""Deferred computation of received attention.

On a GPU, layers with short sequences run fastest with torch's own kernels, which do not return received attention. It
is computed afterwards from queries and keys, for several layers in one kernel launch.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention import Plain, attend
from headwise.attention.operators import is_plain_eager
from headwise.attention.triton_backend.multi_layer_received import LayerQK, multi_layer_received, why_unsupported

#: A batch is computed once its queries and keys take this many bytes; their gradients take as much again.
MAX_BATCH_BYTES = 2**28

#: On longer sequences, computing the weights a second time costs more than the Python overhead of our kernels.
MAX_DEFERRED_LENGTH = 512


class DeferredReceived:
    """Received attention of one layer, (B, H, N), computed on first use."""

    def __init__(self, layer: LayerQK) -> None:
        self.layer = layer
        self.result: Tensor | None = None

    @property
    def requires_grad(self) -> bool:
        return self.layer.q.requires_grad or self.layer.k.requires_grad

    def compute(self) -> Tensor:
        if self.result is None:
            compute([self])
        assert self.result is not None
        return self.result


class DeferredBatch:
    """Layers whose received attention is computed together."""

    def __init__(self) -> None:
        self._pending: list[DeferredReceived] = []
        self._num_bytes = 0

    def add(self, deferred: DeferredReceived) -> None:
        """Add a layer, and compute the batch if it is full."""
        self._pending.append(deferred)
        self._num_bytes += deferred.layer.q.nbytes + deferred.layer.k.nbytes
        if self._num_bytes >= MAX_BATCH_BYTES:
            self.compute()

    def compute(self) -> None:
        """Compute the received attention of all pending layers."""
        pending = self._pending
        self.clear()
        compute(pending)

    def clear(self) -> None:
        """Drop all pending layers."""
        self._pending, self._num_bytes = [], 0


def can_defer(q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None) -> bool:
    """Return whether a layer can run with torch's kernels and have its received attention computed later.

    Deferring is not possible

    - for grouped heads without a fused kernel in torch: with a mask, or with keys and values of different or large
      width;
    - for masks longer than the keys;
    - under a compiler or a torch mode, and in a captured CUDA graph, whose pointer tables would come from the host;
    - under saved-tensor hooks (offloading, non-reentrant checkpointing), because deferred queries and keys stay in
      memory.
    """
    if q.shape[1] != k.shape[1] and not (attention_mask is None and k.shape[3] == v.shape[3] <= 256):
        return False
    if attention_mask is not None and attention_mask.shape[-1] != k.shape[2]:
        return False
    return (
        is_plain_eager(q)
        and is_short(q)
        and not _compat.has_saved_tensor_hooks()
        and not (q.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def is_short(q: Tensor) -> bool:
    """Return whether deferring is faster than our kernels."""
    return q.is_cuda and q.shape[2] <= MAX_DEFERRED_LENGTH


def compute(batch: Iterable[DeferredReceived]) -> None:
    """Compute received attention, in one call for all layers that agree in shape, scale and mask."""
    groups: dict[Any, list[DeferredReceived]] = {}
    for deferred in batch:
        if deferred.result is None:
            groups.setdefault((deferred.requires_grad, deferred.layer.kind), []).append(deferred)
    with torch.enable_grad():  # the layer that fills a batch may run without gradients
        for group in groups.values():
            layers = [deferred.layer for deferred in group]
            if why_unsupported(layers[0]) is None:
                results = multi_layer_received(layers)
            else:
                results = [received_by_attend(layer) for layer in layers]
            for deferred, result in zip(group, results, strict=True):
                deferred.result = result


def received_by_attend(layer: LayerQK) -> Tensor:
    """Compute the received attention of one layer with `attend`, for inputs that the kernels do not support."""
    received = attend(
        layer.q,
        layer.k,
        layer.k,
        scheme=Plain(),
        key_padding=layer.padding,
        query_padding=layer.padding,
        causal=layer.causal,
        scale=layer.scale,
        return_received=True,
    ).received
    assert received is not None
    return received
