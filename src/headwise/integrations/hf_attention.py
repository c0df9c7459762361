"""headwise's attention as an attention implementation of transformers.

`AttentionInterface` passes queries, keys and values of every layer to `headwise_attention_forward`, and
`AttentionMaskInterface` builds masks with `headwise_mask`. A layer may have a position scheme (`headwise.retrofit`), a
recorder (`headwise.guiding`) and an observer (`headwise.inspection`). A layer with none of them runs with torch's
kernels, unless it has a softcap or sinks, or its weights are requested with `output_attentions=True`.

Axes: B batch, H heads, G key heads, N queries, M keys, D head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from headwise._compat import can_set_attn_implementation, find_active_collector, set_attn_implementation
from headwise._scheme_loading import ATTN_IMPLEMENTATION
from headwise.attention import Plain, Scheme, attend
from headwise.attention.checks import to_autocast_dtype
from headwise.integrations.masks import (
    first_query_position,
    headwise_mask,
    padded_rows,
    real_tokens,
    slice_rows,
    split_mask,
    trim_keys,
)
from headwise.integrations.model_utils import UnsupportedAttentionError, restoring_attn_implementation
from headwise.integrations.observing import (
    OBSERVER,
    AttentionObserver,
    AttentionRows,
    CrossAttentionObserver,
    row_weights,
)
from headwise.integrations.packed_attention import attend_packed, packed_lengths
from headwise.integrations.recording import RECORDER, LayerRecord, Recorder, RecordField, attend_outputs
from headwise.integrations.scheme_layers import get_scheme, model_attn_implementation
from headwise.integrations.window_attention import find_window

#: The attention implementations that return weights and whose masks a layer with a scheme can read.
WITH_WEIGHTS = (ATTN_IMPLEMENTATION, "eager")

#: The outputs that transformers collects in the current forward pass.
ACTIVE_COLLECTOR = find_active_collector()

_PLAIN = Plain()
_WEIGHTS = frozenset[RecordField]({"weights"})


def headwise_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute one layer's attention; transformers calls this function.

    Args:
        module: the layer.
        query: (B, H, N, D).
        key, value: (B, G, M, D).
        attention_mask: as built by `headwise_mask`, or an additive mask.
        scaling, dropout, is_causal, position_bias, options: as in transformers' `sdpa_attention_forward`.
        softcap: the limit of the scores, as in Gemma 2.
        s_aux: the attention sink of each head, (H,), as in GPT-OSS.

    Returns:
        The output (B, N, H, D), and the weights before dropout (B, H, N, M) if `output_attentions` is among the
        options, otherwise None.
    """
    scheme, recorder, observer = get_attachments(module)
    needs_weights = bool(options.get("output_attentions")) or are_weights_collected()
    if scheme is not None:
        check_model_implementation(module, needs_weights=needs_weights)
    cu_seqlens, cu_seqlens_k = packed_lengths(module, options)
    if cu_seqlens is not None:
        if recorder is not None or observer is not None or needs_weights:
            raise UnsupportedAttentionError(module, "gets packed sequences, whose attention maps cannot be read")
        output = attend_packed(
            module,
            query,
            key,
            value,
            position_bias,
            is_causal=is_causal,
            sliding_window=options.get("sliding_window"),
            scheme=_PLAIN if scheme is None else scheme,
            cu_seqlens=cu_seqlens,
            cu_seqlens_k=cu_seqlens_k,
            softcap=softcap,
            sinks=s_aux,
            dropout=dropout,
            scale=scaling,
        )
        return output.transpose(1, 2).contiguous(), None
    if attention_mask is not None:
        key, value, position_bias = trim_keys(key, value, position_bias, attention_mask.shape[-1])
    if recorder is not None or observer is not None:
        recorder, observer = select_attachments(recorder, observer, query, key)
    window = find_window(module, query, key, attention_mask, is_causal, options.get("sliding_window"))
    if window is not None:
        needs_map = needs_weights or recorder is not None or observer is not None
        if not needs_map and window.is_mergeable(scheme, position_bias, softcap, s_aux):
            attend_options = {"scheme": scheme or _PLAIN, "scale": scaling, "dropout": dropout}
            output = window.attend(query, key, value, attention_mask, **attend_options)
            return output.transpose(1, 2).contiguous(), None
        attention_mask = window.dense_mask(attention_mask, query)
    needs_attend = scheme is not None or needs_weights or softcap is not None or s_aux is not None
    if needs_attend or recorder is not None or observer is not None:
        call = prepare_call(
            module,
            query,
            key,
            value,
            attention_mask,
            position_bias,
            scheme,
            scaling,
            dropout,
            is_causal,
            softcap,
            s_aux,
        )
        if needs_attend or recorder is not None:
            output, weights = run_call(module, call, recorder, observer, scheme=scheme, needs_weights=needs_weights)
            return output.contiguous(), weights
        assert observer is not None
        observer(module, attention_rows(call, scheme, observer))
    sdpa_output: tuple[Tensor, None] = sdpa_attention_forward(
        module,
        query,
        key,
        value,
        attention_mask,
        scaling=scaling,
        dropout=dropout,
        is_causal=is_causal,
        position_bias=position_bias,
        **options,
    )
    return sdpa_output


def run_call(
    module: nn.Module,
    call: "AttentionCall",
    recorder: Recorder | None,
    observer: AttentionObserver | None,
    *,
    scheme: Scheme | None,
    needs_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute one layer's attention with `attend`, for its recorder and observer too.

    Returns:
        The output (B, N, H, D), in any layout, and the weights before dropout (B, H, N, M) if they are needed.
    """
    if observer is not None:
        observer(module, attention_rows(call, scheme, observer))
    if recorder is not None:
        fields = recorder.required_fields | _WEIGHTS if needs_weights else recorder.required_fields
        record = record_layer(call, fields)
        recorder.record(module, record)
        return record.output.transpose(1, 2), record.weights if needs_weights else None
    result: Any = attend(*call.tensors, **call.options, return_weights=needs_weights)
    output, weights = (result.output, result.weights) if needs_weights else (result, None)
    return output.transpose(1, 2), weights


def are_weights_collected(*, is_compiling: bool | None = None) -> bool:
    """Return whether transformers collects attention weights in this forward pass.

    Some models, such as GPT-2, do not pass `output_attentions` on to their layers.

    Args:
        is_compiling: whether torch.compile traces this code, if the caller knows it.
    """
    if ACTIVE_COLLECTOR is None:
        return False
    is_compiling = torch.compiler.is_compiling() if is_compiling is None else is_compiling
    collected = ACTIVE_COLLECTOR.global_var if is_compiling else ACTIVE_COLLECTOR.get()
    return collected is not None and ("attentions" in collected or "cross_attentions" in collected)


def check_model_implementation(module: nn.Module, *, needs_weights: bool) -> None:
    """Raise ValueError if a layer's scheme cannot be computed with the attention implementation of the model.

    The model's implementation builds the masks. It computes the layers without a scheme, whose weights SDPA does not
    return.
    """
    implementation = model_attn_implementation(module)
    supported = WITH_WEIGHTS if needs_weights else (*WITH_WEIGHTS, "sdpa")
    if implementation not in supported:
        raise ValueError(
            f"{type(module).__name__} has a position scheme, which cannot be computed with "
            f"attn_implementation={implementation!r}{' and output_attentions=True' if needs_weights else ''}; "
            f"call model.set_attn_implementation with one of {', '.join(supported)}"
        )


def get_attachments(module: nn.Module) -> tuple[Any, Recorder | None, AttentionObserver | None]:
    """Return a layer's scheme, recorder and observer. `getattr` is slow for attributes that a module does not have."""
    attributes = module.__dict__
    return get_scheme(module), attributes.get(RECORDER), attributes.get(OBSERVER)


@dataclass(eq=False)
class AttentionCall:
    """One call of a layer's attention, as arguments of `attend`.

    Attributes:
        q: (B, H, N, D).
        k, v: (B, G, M, D).
        attention_mask: transformers' mask.
        is_causal: whether the layer is causal, by `causal=True` or by its mask.
        options: the keyword arguments of `attend`.
        real_tokens: which tokens are not padding, (B, N), for models whose mask does not contain this.
        reads_padding: whether the model reads the outputs of padding tokens after the last real one, too.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    attention_mask: Tensor | None
    is_causal: bool
    options: dict[str, Any]
    real_tokens: Tensor | None = None
    reads_padding: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as attention computes with them. With autocast, rotary models have q and k in float32."""
        return to_autocast_dtype(self.q, self.k, self.v)

    @property
    def padding(self) -> Tensor | None:
        """True for real tokens, (B, N); None if there is no padding."""
        if self.real_tokens is not None:
            return self.real_tokens
        return real_tokens(self.options["key_padding"], self.options["mask"], self.q.shape[0])

    @property
    def scale(self) -> float:
        scale = self.options["scale"]
        return float(self.q.shape[3] ** -0.5 if scale is None else scale)


def prepare_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    scheme: Scheme | None,
    scaling: float | None,
    dropout: float,
    is_causal: bool | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> AttentionCall:
    """Convert the arguments of transformers to those of `attend`."""
    num_queries = query.shape[2]
    is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = is_causal and attention_mask is None and num_queries > 1
    if causal:
        key, value, position_bias = trim_keys(key, value, position_bias, num_queries)
    num_keys = key.shape[2]
    key_padding, mask, position_bias = split_mask(attention_mask, position_bias, num_keys)
    if key_padding is not None and key_padding.shape[0] != query.shape[0]:  # one mask for all texts
        key_padding = key_padding.expand(query.shape[0], -1)
    implementation = model_attn_implementation(module)
    offset = 0
    if scheme is not None:
        is_ours = attention_mask is not None and attention_mask.dtype == torch.bool
        is_ours = is_ours and implementation == ATTN_IMPLEMENTATION
        visible = key_padding[:, None, None] if key_padding is not None else mask
        offset = first_query_position(visible, num_queries, num_keys, ends_at_last_query=is_ours)
    attend_options = {
        "scheme": _PLAIN if scheme is None else scheme,
        "key_padding": key_padding,
        "mask": mask,
        "causal": causal,
        "position_bias": position_bias,
        "offset": offset,
        "softcap": softcap,
        "sinks": sinks,
        "dropout": dropout,
        "scale": scaling,
        "backend": "reference" if scheme is not None and implementation == "eager" else "auto",
    }
    return AttentionCall(query, key, value, attention_mask, is_causal, attend_options)


def select_attachments(
    recorder: Recorder | None, observer: AttentionObserver | None, query: Tensor, key: Tensor
) -> tuple[Recorder | None, AttentionObserver | None]:
    """Return the recorder and the observer of a call, None if they do not apply to it."""
    if query.shape[2] != key.shape[2]:  # layers with a cache are neither recorded nor observed
        return None, observer if isinstance(observer, CrossAttentionObserver) else None
    return recorder if recorder is not None and recorder.is_recording else None, observer


def attention_rows(call: AttentionCall, scheme: Scheme | None, observer: AttentionObserver) -> AttentionRows:
    """Return the `AttentionRows` of a layer, which compute its weights for an observer on request."""
    padding = None if isinstance(observer, CrossAttentionObserver) else call.padding
    if padding is None:
        padding = torch.ones(call.q.shape[0], call.q.shape[2], dtype=torch.bool, device=call.q.device)
    weights = row_weights(call.q, call.k, call.v, padding, call.options)
    return AttentionRows(call.q.shape[1], padding, scheme, weights)


def record_layer(call: AttentionCall, required_fields: frozenset[RecordField]) -> LayerRecord:
    """Run a layer and record it."""
    padding = call.padding
    names = attend_outputs(
        required_fields,
        scores_are_products=type(call.options["scheme"]) is Plain and call.options["position_bias"] is None,
    )
    options = call.options | {f"return_{name}": True for name in names}
    result = attend(*call.tensors, query_padding=padding, **options)
    output = restore_padded_rows(call, result.output, padding)
    fields = {name: getattr(result, name) for name in names}
    return LayerRecord(
        q=call.q,
        k=call.k,
        v=call.v,
        output=output,
        scale=call.scale,
        causal=call.options["causal"],
        padding=padding,
        mask=call.options["mask"],
        softcap=call.options["softcap"],
        **fields,
    )


def restore_padded_rows(call: AttentionCall, output: Tensor, padding: Tensor | None) -> Tensor:
    """Return the output with that of padding tokens, which is 0 because they are excluded from received attention.

    Only rows up to the last padding token before a real one are computed: a model may read a padding token at the left,
    such as BERT's pooler, but not those at the end of a text. `reads_padding` is set for models that read these, too.
    """
    at_end, mask = call.reads_padding, call.options["mask"]
    # Layers without the attribute is_causal, such as those of LayoutLM and Splinter, count as causal. They are not if
    # all queries have the same mask.
    has_same_mask = call.options["key_padding"] is not None or (mask is not None and mask.shape[2] == 1)
    is_causal = call.is_causal and not has_same_mask
    rows = None if is_causal or padding is None else padded_rows(padding, call.attention_mask, at_end=at_end)
    if rows is None or padding is None:
        return output
    start, stop = rows
    padded = attend(call.q[:, :, start:stop], call.k, call.v, **slice_rows(call.options, start, stop))
    real = padding[:, None, start:stop, None]
    return torch.cat([output[:, :, :start], output[:, :, start:stop].where(real, padded), output[:, :, stop:]], dim=2)


@contextmanager
def use_headwise_attention(model: PreTrainedModel) -> Iterator[None]:
    """Run a model with headwise's attention, and restore its own implementation on exit."""
    with restoring_attn_implementation(model) as modules:
        if can_set_attn_implementation(model):
            model.set_attn_implementation(ATTN_IMPLEMENTATION)
        for module in modules:  # older transformers do not update copies of the config in submodules
            set_attn_implementation(module.config, ATTN_IMPLEMENTATION)
        yield


AttentionInterface.register(ATTN_IMPLEMENTATION, headwise_attention_forward)
AttentionMaskInterface.register(ATTN_IMPLEMENTATION, headwise_mask)
