"""`attend`, the attention operator: checks its arguments, evaluates the scheme, chooses a backend and runs it."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor

from headwise.attention import blockwise, reference, sdpa, triton_backend
from headwise.attention.checks import (
    check_is_terms,
    check_number,
    check_offset,
    check_packed,
    check_probability,
    check_scheme,
    check_sinks,
    check_softcap,
    check_tensors,
    check_terms,
    check_window,
    disable_autocast,
    to_broadcastable,
    to_cu_seqlens_pair,
    to_padding_mask,
)
from headwise.attention.schemes import Scheme
from headwise.attention.schemes.scheme import check_choice
from headwise.attention.types import (
    AttentionInputs,
    AttentionOutput,
    SchemeTerms,
    SequenceSlice,
    concatenate_sequences,
    sequence_slices,
)

Backend = Literal["auto", "reference", "blockwise", "sdpa", "triton"]

BACKEND_NAMES = get_args(Backend)
BACKENDS = {
    "reference": reference.attend,
    "blockwise": blockwise.attend,
    "sdpa": sdpa.attend,
    "triton": triton_backend.attend,
}

#: Functions that return why a backend does not support some inputs, or None. The other backends support all inputs.
WHY_UNSUPPORTED = {"sdpa": sdpa.why_unsupported, "triton": triton_backend.why_unsupported}

#: The backends that compute all sequences of a `cu_seqlens` batch in one call. The others compute one at a time.
SUPPORT_CU_SEQLENS = ("blockwise", "triton")

#: `auto` uses `reference` for fewer than this number of pairs (B · H · N · M), on a CPU and on other devices. A float32
#: map of this size takes 64 MiB and 1 GiB, and `reference` stores several maps.
MAX_REFERENCE_PAIRS_CPU, MAX_REFERENCE_PAIRS = 2**24, 2**28

#: From this number of keys on, `auto` uses `blockwise` for windows of at most half of the keys. On two CPU cores,
#: forward and backward take 0.4 to 1.0 times as long as with `reference` at 512 keys, and 0.1 at 2,048.
MIN_WINDOWED_KEYS = 512


@dataclass(frozen=True)
class BackendChoice:
    """The backend that `attend` uses for its arguments, and the reason."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


@dataclass(frozen=True)
class _ExplainOnly:
    """A value of `backend` with which `attend` returns its `BackendChoice` and computes nothing."""

    backend: Backend


@overload
def attend(  # calls without return_… options
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    key_padding: Tensor | None = None,
    query_padding: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    offset: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    backend: Backend = "auto",
) -> Tensor: ...
@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    key_padding: Tensor | None = None,
    query_padding: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    offset: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    return_received: bool = False,
    return_weight_norms: bool = False,
    return_lse: bool = False,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> AttentionOutput: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    key_padding: Tensor | None = None,
    query_padding: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    offset: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    return_received: bool = False,
    return_weight_norms: bool = False,
    return_lse: bool = False,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> Any:
    """Compute attention with a position scheme.

    Masks are True where attention is allowed, as in `torch.nn.functional.scaled_dot_product_attention`. Queries without
    any key get zeros and pass no gradient.

    Args:
        q: queries (B, H, N, d).
        k: keys (B, G, M, d); H is a multiple of G, and each key head is shared by H/G query heads.
        v: values (B, G, M, any width).
        scheme: position scheme: `Plain()`, `DistanceAware(…)`, `RelativePositions(…)`, `TransformerXL(…)`,
            `Tener(…)`, `Alibi(…)`, `Rotary(…)`, `T5Bias(…)`, `Disentangled(…)`, or your own.
        key_padding: boolean mask of the real keys (B, M), or lengths (B,).
        query_padding: boolean mask of the real queries (B, N), or lengths (B,). Padding queries get zeros and do not
            contribute to `received`.
        causal: each query attends only to keys up to its own position.
        window: (left, right): each query attends only to keys up to `left` positions before and `right` positions
            after its own; -1 means no limit on that side. The time grows with the size of the window, not with M.
        mask: boolean mask, broadcastable to (B, H, N, M).
        position_bias: differentiable bias that is added to the scores, as in T5; broadcastable to (B, H, N, M).
        offset: position of the first query. Keys have the positions 0 … M−1. By default it is M − N with `causal` or
            `window`, so that the last query has the position of the last key, as in flash-attention. This is what
            decoding with a cache needs. Otherwise the default is 0.
        softcap: limit of the scores, as in Gemma 2: softcap · tanh(score / softcap), before `position_bias` is added.
        sinks: differentiable logit of each query head, (H,), as in GPT-OSS: the score of a further key without a value,
            which takes a part of the softmax.
        dropout: dropout probability of the attention weights; pass 0 in evaluation.
        scale: factor of the scores, above 0. The default depends on the scheme: 1 for `Tener`, 1/√(3d) for
            `Disentangled`, 1/√d for the others.
        cu_seqlens: cumulative lengths of sequences that are concatenated without padding in a batch of one, from 0 to
            N = M. Tokens attend only within their sequence. Can be combined with `causal`, `window`, `softcap`,
            `sinks`, `dropout`, and all `return_…` options except `return_weights`. The values of a tensor on a GPU are
            not checked. Pass a new tensor after a change through NumPy or `.data`, which torch does not count.
        cu_seqlens_k: cumulative lengths of the keys' sequences, from 0 to M, if they differ from those of the queries.
            With `causal` or `window`, the last query of each sequence has the position of its last key.
        return_received: also return the attention that each key receives from all real queries, before dropout,
            (B, H, M).
        return_weight_norms: also return the sum of squares of each query's weights, before dropout, (B, H, N).
        return_lse: also return the log-sum-exp of each query's scores, (B, H, N), so that the softmax of a pair is
            exp(score − lse). It is −∞, without gradient, for queries without any key; with `sinks`, the sink's logit
            for such queries unless they are padding.
        return_weights: also return the weights, before dropout, (B, H, N, M). Needs N × M memory.
        backend: `reference` (whole maps), `blockwise` (no N × M memory), `sdpa` (torch's kernels, for schemes
            without tables and coefficients, such as `Plain` and `Tener`), `triton` (fused GPU kernels), or `auto`,
            which chooses one; see `explain`. An explicit backend that does not support the arguments raises an error.

    Returns:
        The output (B, H, N, width of v) in q's dtype. With a `return_…` option, an `AttentionOutput`: a named tuple of
        output, received, weight_norms, lse and weights, None for results that were not requested. All are
        differentiable. For half-precision inputs all but the output are float32.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape or value, or the backend does not support the arguments.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> result = hw.attend(x, x, x, scheme=hw.DistanceAware(heads=4), return_received=True)
        >>> result.output.shape, result.received.shape
        (torch.Size([2, 4, 10, 16]), torch.Size([2, 4, 10]))
        >>> hw.attend(x, x, x, scheme=hw.Plain(), causal=True, window=(3, 0)).shape  # the last four tokens
        torch.Size([2, 4, 10, 16])
        >>> sequences = torch.randn(1, 4, 3 + 7, 16)  # of 3 and 7 tokens
        >>> hw.attend(sequences, sequences, sequences, scheme=hw.Plain(), cu_seqlens=[0, 3, 10]).shape
        torch.Size([1, 4, 10, 16])
    """
    key, is_packed = None, cu_seqlens is not None or cu_seqlens_k is not None
    has_more_extras = return_weight_norms or return_lse or return_weights
    may_use_triton = backend == "triton" or (isinstance(q, Tensor) and q.is_cuda)
    is_cacheable = not (return_weight_norms or return_weights or (return_lse and return_received))
    is_cacheable = is_cacheable and cu_seqlens_k is None and not torch.compiler.is_compiling()
    if may_use_triton and is_cacheable:
        others = None
        if (
            is_packed
            or window is not None
            or softcap is not None
            or mask is not None
            or position_bias is not None
            or sinks is not None
            or query_padding is not None
        ):
            others = (window, softcap, mask, position_bias, sinks, query_padding, cu_seqlens)
        from headwise.attention.triton_backend import cached_calls

        key = cached_calls.call_key(
            q, k, v, scheme, key_padding, causal, offset, dropout, scale, backend, return_received, return_lse, others
        )
        if key is not None:
            cached_result = cached_calls.attend_cached(key, q, k, v, scheme, key_padding, others)
            if cached_result is not None:
                return cached_result
    q, k, v = check_tensors(q, k, v)
    if is_packed:
        check_packed(
            q,
            k,
            same_length=cu_seqlens_k is None,
            key_padding=key_padding is not None,
            query_padding=query_padding is not None,
            mask=mask is not None,
            position_bias=position_bias is not None,
            offset=bool(offset),
            return_weights=return_weights,
        )
    with disable_autocast(q.device.type):
        check_scheme(scheme, q)
        (batch, heads, n, head_dim), m = q.shape, k.shape[2]
        resolved_window = check_window(window, causal=causal)
        is_aligned = causal or window is not None
        q_lengths, k_lengths = to_cu_seqlens_pair(cu_seqlens, cu_seqlens_k, n, m, q.device, is_aligned=is_aligned)
        if k_lengths is None:
            first_position = check_offset(offset, n, m, is_aligned=is_aligned)
        else:  # tables then contain all relative positions inside the sequences
            first_position = max(0, m - n) if is_aligned else 0
        check_probability("dropout", dropout)
        if scale is not None:
            check_number("scale", scale)
        if scale is not None and not scale > 0.0:
            raise ValueError(f"scale must be above 0, got {scale}")
        terms = scheme(q, k, offset=first_position)
        check_is_terms(terms, scheme)
        if q_lengths is not None and k_lengths is not None and not _is_without_positions(terms, q, k):
            terms = _shift_positions(terms, scheme, q, k, sequence_slices(q_lengths, k_lengths, is_aligned=is_aligned))
        check_terms(terms, scheme, q, k, v)
        inputs = AttentionInputs(
            terms=terms,
            v=v,
            scale=scheme.scale(head_dim) if scale is None else float(scale),
            offset=first_position,
            causal=bool(causal) and window is None,
            window=resolved_window,
            softcap=check_softcap(softcap),
            sinks=check_sinks(sinks, heads, q.device),
            key_padding=to_padding_mask("key_padding", key_padding, batch, m, q.device),
            query_padding=to_padding_mask("query_padding", query_padding, batch, n, q.device),
            mask=to_broadcastable("mask", mask, (batch, heads, n, m), q.device),
            bias=to_broadcastable("position_bias", position_bias, (batch, heads, n, m), q.device),
            dropout=float(dropout),
            cu_seqlens=q_lengths,
            cu_seqlens_k=k_lengths,
            is_aligned=is_aligned,
            want_received=return_received,
            want_weight_norms=return_weight_norms,
            want_lse=return_lse,
            want_weights=return_weights,
            out_dtype=q.dtype,
        )
        requested: Backend | _ExplainOnly = backend
        if isinstance(requested, _ExplainOnly):
            return choose_backend(inputs, requested.backend)
        choice = choose_backend(inputs, backend)
        if key is not None and choice.backend == "triton":
            cached_result = cached_calls.attend_first(key, inputs, scheme)
            if cached_result is not None:
                return cached_result
        result = _run(inputs, choice.backend)
    return result if return_received or has_more_extras else result.output


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, scheme: Scheme, backend: Backend = "auto", **options: Any
) -> BackendChoice:
    """Return the backend that `attend` uses for these arguments, and the reason.

    Args:
        q: queries.
        k: keys.
        v: values.
        scheme: position scheme.
        backend: `auto`, or the backend to check.
        options: the other arguments of `attend`.

    Raises:
        TypeError: as `attend`.
        ValueError: as `attend`.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(1, 4, 2048, 64)
        >>> print(hw.explain(x, x, x, scheme=hw.DistanceAware(heads=4)).backend)
        blockwise
    """
    for name in options.keys() - ATTEND_OPTIONS:
        raise TypeError(f"explain() got an unexpected keyword argument {name!r}")
    explain_only: Any = _ExplainOnly(backend)
    choice: Any = attend(q, k, v, scheme=scheme, backend=explain_only, **options)
    return choice  # type: ignore[no-any-return]


#: Keyword arguments of `attend`.
ATTEND_OPTIONS = frozenset(inspect.signature(attend).parameters)


def choose_backend(inputs: AttentionInputs, backend: Backend) -> BackendChoice:
    """Return the backend for these inputs.

    Raises:
        ValueError: an explicit backend does not support the inputs.
    """
    check_choice("backend", backend, BACKEND_NAMES)
    if backend != "auto":
        reason = WHY_UNSUPPORTED[backend](inputs) if backend in WHY_UNSUPPORTED else None
        if reason is not None:
            raise ValueError(f"backend={backend!r} cannot compute this: {reason}; use backend='auto'")
        return BackendChoice(backend, "selected by the caller")
    if inputs.cu_seqlens is not None:
        if _can_use_triton(inputs):
            return BackendChoice("triton", "fused kernels on the GPU, for all sequences at once")
        choice = choose_backend(max(inputs.split_sequences(), key=lambda x: x.shape[2] * x.shape[3]), backend)
        return BackendChoice(choice.backend, f"sequence by sequence; for the longest: {choice.reason}")
    # SDPA stores whole maps if widths differ.
    same_width = inputs.terms.position_q is None and inputs.terms.q.shape[3] == inputs.v.shape[3]
    if same_width and sdpa.why_unsupported(inputs) is None:
        return BackendChoice("sdpa", "torch has fused kernels for attention without position terms")
    if _can_use_triton(inputs):
        return BackendChoice("triton", "fused kernels on the GPU")
    if torch.compiler.is_exporting():
        return BackendChoice("reference", "exported programs consist of standard operators")
    batch, heads, n, m = inputs.shape
    if inputs.window is not None and min(inputs.window) >= 0 and not inputs.want_weights:
        num_keys = sum(inputs.window) + 1
        if m >= MIN_WINDOWED_KEYS and m >= 2 * num_keys:
            reason = f"a window of {num_keys:,} of {m:,} keys leaves most of a map empty"
            return BackendChoice("blockwise", f"{reason}{_why_not_triton(inputs)}")
    max_pairs = MAX_REFERENCE_PAIRS_CPU if inputs.v.device.type == "cpu" else MAX_REFERENCE_PAIRS
    if batch * heads * n * m >= max_pairs:
        return BackendChoice("blockwise", f"{_describe_maps(inputs)} are too large to store{_why_not_triton(inputs)}")
    return BackendChoice("reference", f"{_describe_maps(inputs)} are small enough to store{_why_not_triton(inputs)}")


def _can_use_triton(inputs: AttentionInputs) -> bool:
    return inputs.v.device.type == "cuda" and triton_backend.why_unsupported(inputs) is None


def _why_not_triton(inputs: AttentionInputs) -> str:
    """Return why a GPU does not use the kernels, for `explain`; nothing on a CPU and in compiled code."""
    if inputs.v.device.type == "cpu" or torch.compiler.is_compiling():
        return ""
    if inputs.v.device.type != "cuda":
        return f"; the Triton kernels need an NVIDIA or AMD GPU, and the tensors are on {inputs.v.device}"
    return f"; {triton_backend.why_unsupported(inputs)}"


def _run(inputs: AttentionInputs, backend: str) -> AttentionOutput:
    if backend != "triton":
        inputs = replace(inputs, terms=inputs.terms.widened())
    if inputs.cu_seqlens is None or backend in SUPPORT_CU_SEQLENS:
        return BACKENDS[backend](inputs)
    return concatenate_sequences([BACKENDS[backend](sequence) for sequence in inputs.split_sequences()])


def _shift_positions(
    terms: SchemeTerms, scheme: Scheme, q: Tensor, k: Tensor, sequences: Sequence[SequenceSlice]
) -> SchemeTerms:
    """Return the terms of a scheme whose queries and keys depend on positions, with positions counted per sequence."""
    parts = [scheme(q[:, :, rows], k[:, :, keys], offset=offset) for rows, keys, offset in sequences]

    def concatenate(tensors: list[Any]) -> Any:
        return None if tensors[0] is None else torch.cat(tensors, dim=2)

    return replace(
        terms,
        q=concatenate([part.q for part in parts]),
        k=concatenate([part.k for part in parts]),
        position_q=concatenate([part.position_q for part in parts]),
        position_k=concatenate([part.position_k for part in parts]),
    )


def _is_without_positions(terms: SchemeTerms, q: Tensor, k: Tensor) -> bool:
    """Return whether queries and keys of the terms do not depend on positions."""
    return terms.q is q and terms.k is k and terms.position_q is None


def _describe_maps(inputs: AttentionInputs) -> str:
    """Describe the size of the maps. Compiled code omits it, because every size would cause a recompilation."""
    if torch.compiler.is_compiling():
        return "maps"
    batch, heads, n, m = inputs.shape
    return f"maps of {batch} × {heads} × {n} × {m} weights"
