"""What tokens receive, computed when somebody asks, and for several layers at once."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from headwise.attention import Plain, attend
from headwise.attention.operators import is_plain_eager
from headwise.attention.triton_backend.multi_layer_received import LayerQK, multi_layer_received, why_unsupported

#: A bunch is complete with so many bytes of queries and keys: in the backward pass their gradients take as much.
BUNCH = 2**28


class DeferredReceived:
    """What one layer's tokens receive, (B, H, N)."""

    def __init__(self, look: LayerQK) -> None:
        self.look = look
        self.answer: Tensor | None = None

    @property
    def requires_grad(self) -> bool:
        return self.look.q.requires_grad or self.look.k.requires_grad

    def found(self) -> Tensor:
        if self.answer is None:
            find([self])
        assert self.answer is not None
        return self.answer


class DeferredBatch:
    """Layers that wait to be found together."""

    def __init__(self) -> None:
        self._waiting: list[DeferredReceived] = []
        self._size = 0

    def add(self, waiting: DeferredReceived) -> None:
        self._waiting.append(waiting)
        self._size += waiting.look.q.nbytes + waiting.look.k.nbytes
        if self._size >= BUNCH:
            self.find()

    def find(self) -> None:
        """Compute what they receive."""
        waiting = self._waiting
        self.forget()
        find(waiting)

    def forget(self) -> None:
        self._waiting, self._size = [], 0


def may_wait(q: Tensor) -> bool:
    """Whether what could be computed now may be computed later.

    Not in a graph that is captured, as tables of addresses come from the host, nor where a compiler or a mode looks at
    operators. And not where hooks put elsewhere what a layer saves, or compute it again: what waits would be kept. (The
    re-entrant kind of checkpointing has no hooks, but no gradient either, and is refused.)
    """
    return (
        is_plain_eager(q)
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        and not (q.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def find(waiting: Iterable[DeferredReceived]) -> None:
    """Tell layers what their tokens receive, those of one kind at once."""
    kinds: dict[Any, list[DeferredReceived]] = {}
    for one in waiting:
        if one.answer is None:
            kinds.setdefault((one.requires_grad, one.look.kind), []).append(one)
    with torch.enable_grad():  # whatever holds for the layer that completes a bunch
        for some in kinds.values():
            looks = [one.look for one in some]
            answers = (
                multi_layer_received(looks) if why_unsupported(looks[0]) is None else [alone(look) for look in looks]
            )
            for one, answer in zip(some, answers, strict=True):
                one.answer = answer


def alone(look: LayerQK) -> Tensor:
    """The same by attending once more."""
    _, answer = attend(
        look.q,
        look.k,
        look.k,
        scheme=Plain(),
        key_padding=look.padding,
        query_padding=look.padding,
        causal=look.causal,
        scale=look.scale,
        return_received=True,
    )
    found: Tensor = answer
    return found
