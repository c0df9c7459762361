"""Recording of a model's self-attention: what each layer computed in a forward pass.

Axes: B batch, H heads, G key heads, N tokens, D head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.integrations.model_utils import self_attention_modules

#: Optional fields of a `LayerRecord`. `weights` takes N × N memory per head. `states` are values and outputs of heads;
#: they cost nothing, but `output_attentions` does not provide them.
RecordField = Literal["weight_norms", "neighbor_weights", "weights", "states"]

#: The attribute of a module that holds its recorder.
RECORDER = "_headwise_recorder"


@dataclass(kw_only=True, eq=False)  # not frozen: a frozen dataclass takes four times as long to create
class LayerRecord:
    """One layer's part of a forward pass. All weights are those before dropout.

    Attributes:
        q: queries (B, H, N, D).
        k, v: keys and values (B, G, N, D); H is a multiple of G.
        output: the output of each head (B, H, N, D).
        received: the attention that each token receives, summed over all real queries, (B, H, N).
        weight_norms: the sum of the squared weights of each query, (B, H, N), if required.
        lse: the log-sum-exp of each query's scores, (B, H, N), if `neighbor_weights` are required and all scores are
            scale · q·k, soft-capped or not.
        weights: the attention weights (B, H, N, N), if required, or if `neighbor_weights` are required and `lse` does
            not give them.
        padding: True for real tokens, (B, N); None if all are real.
        scale: the factor of q·k.
        causal: whether tokens attend to earlier tokens only.
        mask: True where a query may attend to a key, broadcastable to (B, H, N, N); None without such a mask.
        softcap: the limit of the scores, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    received: Tensor
    scale: float
    causal: bool = False
    padding: Tensor | None = None
    mask: Tensor | None = None
    softcap: float | None = None
    weight_norms: Tensor | None = None
    lse: Tensor | None = None
    weights: Tensor | None = None

    @cached_property
    def real(self) -> Tensor:
        """True for tokens that are not padding, (B, N)."""
        if self.padding is not None:
            return self.padding
        return torch.ones(self.q.shape[0], self.q.shape[2], dtype=torch.bool, device=self.q.device)

    def visible_pairs(self) -> Tensor:
        """Return whether each query and key are real and the query may attend to the key, (B, H or 1, N, N)."""
        n = self.real.shape[1]
        visible = self.real[:, None, :, None] & self.real[:, None, None, :]
        if self.causal:
            visible = visible & torch.ones(n, n, dtype=torch.bool, device=visible.device).tril()
        return visible if self.mask is None else visible & self.mask.expand(-1, -1, n, n)

    def count_visible(self, tokens: Tensor) -> Tensor:
        """Return how many of some tokens, (B, N) boolean, each real query may attend to, (B, H or 1, N)."""
        tokens = tokens & self.real
        if self.mask is not None:
            counts = (self.mask & tokens[:, None, None]).sum(dim=-1).expand(-1, -1, tokens.shape[1])
        elif self.causal:
            counts = tokens.cumsum(dim=1)[:, None]
        else:
            counts = tokens.sum(dim=1)[:, None, None]
        return counts * self.real[:, None]

    def has_neighbor(self, offset: int) -> Tensor:
        """Return whether each token is real and may attend to a real token `offset` positions later, (B, H or 1, N)."""
        n = self.real.shape[1]
        neighbor = torch.arange(n, device=self.real.device) + offset
        in_range = (neighbor >= 0) & (neighbor < (0 if self.causal and offset > 0 else n))
        visible = (self.real & self.real.roll(-offset, dims=1) & in_range)[:, None]
        return visible if self.mask is None else visible & padded_diagonal(self.mask.expand(-1, -1, n, n), offset)

    def neighbor_weights(self, offset: int) -> Tensor:
        """Return each query's weight on the token `offset` positions later, (B, H, N); 0 if there is none."""
        if self.lse is None:
            assert self.weights is not None
            return padded_diagonal(self.weights, offset)
        # Autocast may have lowered the precision that attention ran in.
        q, k = (x.to(self.output.dtype).to(self.lse.dtype) for x in (self.q, self.k))
        k = k.roll(-offset, dims=2).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        hidden = ~self.has_neighbor(offset)
        scores = self.scale * (q * k).sum(dim=-1)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return torch.exp(scores.masked_fill(hidden, -torch.inf) - self.lse.masked_fill(hidden, 0.0))


class Recorder(Protocol):
    """An object that receives a `LayerRecord` from every self-attention layer."""

    @property
    def is_recording(self) -> bool:
        """Whether layers are recorded now."""
        ...

    @property
    def required_fields(self) -> frozenset[RecordField]:
        """The optional fields of `LayerRecord` to compute."""
        ...

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        """Receive one layer's record, during the forward pass."""
        ...


@contextmanager
def recording(model: PreTrainedModel, recorder: Recorder, part: str | None = None) -> Iterator[None]:
    """Attach a recorder to a model's self-attention layers; use it inside `use_headwise_attention`.

    Layers of adapters, which attend to other positions than the encoder before them, are not recorded.

    Args:
        model: the model.
        recorder: receives the records.
        part: the part of an encoder-decoder model: `encoder` (default), `decoder` or `both`.

    Raises:
        RuntimeError: the model has a recorder already.
    """
    modules = self_attention_modules(model, part, include_adapters=False)
    others = [module.__dict__.get(RECORDER) for module in modules]
    if any(other is not None and not getattr(other, "is_closed", False) for other in others):
        raise RuntimeError(f"{type(model).__name__} is already guided: pass all guides to one guiding(…)")
    for module in modules:
        module.__dict__[RECORDER] = recorder
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop(RECORDER, None)


def padded_diagonal(x: Tensor, offset: int) -> Tensor:
    """Return the diagonal of (…, N, N) `offset` columns right of the main one, (…, N), padded with zeros."""
    return F.pad(x.diagonal(offset, dim1=-2, dim2=-1), (max(0, -offset), max(0, offset)))


def attend_outputs(required_fields: frozenset[RecordField], *, scores_are_products: bool) -> list[str]:
    """Return the additional outputs to request from `attend`, in its order.

    Neighbor weights are computed from the log-sum-exp if all scores are scale · q·k, soft-capped or not, and from all
    weights otherwise.
    """
    neighbors = "neighbor_weights" in required_fields
    outputs = {
        "received": True,
        "weight_norms": "weight_norms" in required_fields,
        "lse": neighbors and scores_are_products,
        "weights": "weights" in required_fields or (neighbors and not scores_are_products),
    }
    return [name for name, is_required in outputs.items() if is_required]
