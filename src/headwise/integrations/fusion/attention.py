"""The attention of fused layers: `attend` with position terms that are computed from a model's own parameters.

Axes: B batch, H heads, N queries, M keys, D head width.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise._compat import functorch_is_active, mark_constant
from headwise._scheme_loading import SCHEME
from headwise.attention import Scheme
from headwise.attention.types import SchemeTerms
from headwise.integrations.hf_attention import (
    are_weights_collected,
    get_attachments,
    prepare_call,
    run_call,
    select_attachments,
)
from headwise.integrations.masks import trim_keys
from headwise.integrations.model_utils import UnsupportedAttentionError
from headwise.integrations.observing import OBSERVER
from headwise.integrations.recording import RECORDER

#: On a GPU, the attention of `short_batches.py` is faster for short inputs. On a CPU, fused kernels compute all inputs.
HAS_LIMITS_ON_CPU = False

#: The attribute of layers of a model that was fused with `always=True`.
ALWAYS_FUSED = "_headwise_always_fused"

#: The attributes of layers whose fused kernels compute short inputs, too.
_HAS_NO_LIMIT = frozenset((ALWAYS_FUSED, RECORDER, OBSERVER))


class MaxPairs(NamedTuple):
    """Up to how many pairs of positions a batch is short: attention with whole maps is faster on a GPU.

    A batch of B inputs of N positions has B · N² pairs.
    """

    inference: int = 0
    training: int = 0


def is_short(layer: nn.Module, hidden_states: Tensor, max_pairs: MaxPairs, *, output_attentions: Any = False) -> bool:
    """Return whether a fused layer computes a batch with whole maps, by `short_batches.py`.

    Fused kernels compute all batches whose attention is read, by guides, inspection or the caller, and those of
    compiled models. Each layer asks in each pass, so the answer has to take a few microseconds.

    Args:
        layer: the fused layer. The mode of training, not of gradients, decides, so that checkpointing repeats a pass.
        hidden_states: (B, N, …).
        max_pairs: what is short in the layer's family.
        output_attentions: whether the caller requests weights.
    """
    limit = max_pairs.training if layer.training else max_pairs.inference
    if not limit or torch.compiler.is_compiling() or functorch_is_active():
        return False
    batch_size, length = hidden_states.shape[:2]
    if batch_size * length**2 > limit or not (hidden_states.is_cuda or HAS_LIMITS_ON_CPU):
        return False
    attributes = layer.__dict__
    is_fused = not attributes.keys().isdisjoint(_HAS_NO_LIMIT) or SCHEME in attributes["_modules"]
    return not (is_fused or output_attentions or are_weights_collected(is_compiling=False))


#: The attributes of a module without parameters and hooks. `nn.Module.__init__` takes as long as a small kernel.
_EMPTY_MODULE = vars(Scheme())


class PositionTerms(Scheme):
    """A scheme for one call of a layer, whose terms the layer computed from its own parameters. It runs no hooks.

    Args:
        terms: fields of `SchemeTerms` except q and k.
    """

    terms: dict[str, Any]

    def __init__(self, **terms: Any) -> None:
        self.__dict__.update(_EMPTY_MODULE, terms=terms)

    def __call__(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k, **self.terms)

    forward = __call__


def fused_attention(
    layer: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    *,
    scheme: Scheme | None = None,
    scale: float,
    dropout: float = 0.0,
    is_causal: bool = False,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    real_tokens: Tensor | None = None,
    reads_padding: bool = False,
    is_recorded: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a fused layer, and pass it to the layer's recorder and observer.

    Args:
        layer: the fused layer.
        q: (B, H, N, D).
        k, v: (B, G, M, D).
        attention_mask: boolean, True where attention is allowed, (B, 1, 1, M) if it holds padding only; or an
            additive mask of transformers.
        scheme: the position terms of this call.
        scale: the factor of the scores.
        dropout: the dropout probability of the weights; pass 0 in evaluation.
        is_causal: whether the layer is causal if there is no mask.
        position_bias: a bias that depends on more than the relative position, broadcastable to (B, H, N, M).
        output_attentions: return the weights.
        real_tokens: which tokens recorders and observers count, (B, N); by default, those that some query may see.
        reads_padding: whether the model reads the outputs of padding at the end of an input, as convolutions do.
        is_recorded: whether the layer's recorder and observer get this call.

    Returns:
        The output, (B, N, H · D), and the weights before dropout (B, H, N, M) if they are requested, otherwise None.
    """
    retrofitted, recorder, observer = get_attachments(layer)
    if retrofitted is not None:
        raise UnsupportedAttentionError(
            layer, "is fused and has a position scheme: call headwise.unfuse_attention(model) or remove_scheme(model)"
        )
    needs_weights = output_attentions or are_weights_collected()
    if attention_mask is not None:
        k, v, position_bias = trim_keys(k, v, position_bias, attention_mask.shape[-1])
    recorder, observer = select_attachments(recorder, observer, q, k) if is_recorded else (None, None)
    call = prepare_call(
        layer, q, k, v, attention_mask, position_bias, scheme, scale, dropout, is_causal, softcap=None, sinks=None
    )
    call.options["backend"] = "auto"
    call.real_tokens, call.reads_padding = real_tokens, reads_padding
    output, weights = run_call(layer, call, recorder, observer, scheme=None, needs_weights=needs_weights)
    return output.flatten(2), weights


def refuse_recording(layer: nn.Module, reason: str) -> None:
    """Raise UnsupportedAttentionError if a layer is recorded now."""
    _, recorder, _ = get_attachments(layer)
    if recorder is not None and recorder.is_recording:
        raise UnsupportedAttentionError(layer, reason)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Convert (B, N, H · D) to (B, H, N, D)."""
    return x.view(*x.shape[:-1], x.shape[-1] // head_dim, head_dim).transpose(1, 2)


def dropout_probability(layer: nn.Module, dropout: float | nn.Dropout) -> float:
    """Return the dropout probability of a layer in its present mode, 0 in evaluation."""
    return (dropout.p if isinstance(dropout, nn.Dropout) else float(dropout)) if layer.training else 0.0


@mark_constant  # not of a cached function: the compiler ignores caches and traces what they call
def float32_square_root(value: int) -> float:
    """Return a square root in float32, as some models compute their scale, so that fused scores are the same."""
    return _float32_square_root(value)


@cache
def _float32_square_root(value: int) -> float:
    return float(torch.tensor(float(value), dtype=torch.float32).sqrt())
