"""Observation of attention weights in blocks of rows, so that the N × N maps are never held as a whole."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.attention import Scheme, attend
from headwise.integrations.masks import slice_rows
from headwise.integrations.model_utils import cross_attention_modules, self_attention_modules

#: The attribute of a module that holds its observer.
OBSERVER = "_headwise_observer"


@dataclass(frozen=True)
class AttentionRows:
    """Attention weights of one layer, computed on request.

    Args:
        heads: the number of heads.
        real: True for tokens that are not padding, (B, N). All queries of cross-attention count as real.
        scheme: the layer's position scheme; None if the model handles positions itself.
        weights: called with the first query and the one after the last, returns their weights before dropout, (B,
            heads, queries, keys). Rows of padding tokens are 0.
    """

    heads: int
    real: Tensor
    scheme: Scheme | None
    weights: Callable[[int, int], Tensor]


#: Called with every layer when it runs. The weights can be computed until it returns.
AttentionObserver = Callable[[nn.Module, AttentionRows], None]


@dataclass(frozen=True)
class CrossAttentionObserver:
    """An observer of layers that attend to another sequence."""

    observer: AttentionObserver

    def __call__(self, layer: nn.Module, rows: AttentionRows) -> None:
        self.observer(layer, rows)


@contextmanager
def observing(model: PreTrainedModel, observer: AttentionObserver, part: str | None = None) -> Iterator[None]:
    """Attach an observer to a model's attention layers, whose outputs do not change.

    Use it inside `use_headwise_attention`.

    Args:
        model: the model.
        observer: called with each layer.
        part: the part of an encoder-decoder model: the self-attention of the `encoder` (default) or the `decoder`, or
            `cross` for its cross-attention.
    """
    if part == "cross":
        modules, observer = cross_attention_modules(model), CrossAttentionObserver(observer)
    else:
        modules = self_attention_modules(model, part)
    for module in modules:
        module.__dict__[OBSERVER] = observer
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop(OBSERVER, None)


def row_weights(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, options: Mapping[str, Any]
) -> Callable[[int, int], Tensor]:
    """Return the function that computes the weights of a range of queries, given the options of `attend`."""

    def compute(start: int, stop: int) -> Tensor:
        weights = attend(
            q[:, :, start:stop],
            k,
            v,
            **{**slice_rows(options, start, stop), "dropout": 0.0, "backend": "reference"},
            query_padding=real[:, start:stop],
            return_weights=True,
        ).weights
        assert weights is not None
        return weights

    return compute
