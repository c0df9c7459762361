"""The operator's face: check the arguments, let the scheme state its terms, pick a backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from headwise.attention import blockwise, reference, sdpa, triton_backend
from headwise.attention.checks import (
    broadcastable,
    check_scheme,
    check_share,
    check_tensors,
    cumulative_lengths,
    disable_autocast,
    padding,
)
from headwise.attention.schemes import Scheme
from headwise.attention.schemes.scheme import one_of
from headwise.attention.types import AttentionInputs, joined

Backend = Literal["auto", "reference", "blockwise", "sdpa", "triton"]

BACKEND_NAMES = get_args(Backend)
BACKENDS = {
    "reference": reference.attend,
    "blockwise": blockwise.attend,
    "sdpa": sdpa.attend,
    "triton": triton_backend.attend,
}

#: Why a backend cannot solve a problem, or None if it can; the others can solve all.
WHY_UNSUPPORTED = {"sdpa": sdpa.why_unsupported, "triton": triton_backend.why_unsupported}

#: Whole maps of this many float32 weights are 64 MiB on a CPU and 1 GiB elsewhere, and attention holds several of them.
MANY_PAIRS_ON_CPU, MANY_PAIRS = 2**24, 2**28


@dataclass(frozen=True)
class BackendChoice:
    """Which backend `attend` takes for a problem, and why."""

    backend: str
    reason: str

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    key_padding: Tensor | None = None,
    query_padding: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    offset: int = 0,
    dropout: float = 0.0,
    scale: float | None = None,
    return_received: bool = False,
    return_weight_norms: bool = False,
    return_lse: bool = False,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> Any:
    """Attend by a position scheme.

    Masks say True where a key may be attended, as in `torch.nn.functional.scaled_dot_product_attention`. A query left
    without any key gets zeros, and passes no gradient.

    Args:
        q: queries (B, H, N, d).
        k: keys (B, G, M, d); H is a multiple of G, and each key head serves H/G query heads.
        v: values (B, G, M, any width).
        scheme: how positions enter: `Plain()`, `DistanceAware(…)`, `RelativePositions(…)`, `TransformerXL(…)`,
            `Tener(…)`.
        key_padding: the real keys, (B, M) boolean or (B,) lengths.
        query_padding: the real queries, (B, N) boolean or (B,) lengths. The others get zeros and give nothing.
        causal: a query sees the keys up to its own position.
        mask: boolean, (N, M) or broadcastable to (B, H, N, M).
        position_bias: added to the scores, differentiable, (N, M) or broadcastable to (B, H, N, M); as in T5.
        offset: the position of the first query, where keys stand at 0 … M−1: the number of cached keys when decoding.
        dropout: the share of attention weights to drop; it is up to the caller to give 0 in evaluation.
        scale: what scores are multiplied by, above 0; by default the scheme's own: 1/√d, for `Tener` 1.
        cu_seqlens: texts of different lengths without padding, concatenated in a batch of one; these are
            their cumulative lengths, from 0 to N = M. A token sees its own text only. It goes with `causal`, `dropout`
            and all that is returned but weights. On a GPU the numbers are taken as they are, unless given as a list.
        return_received: also return what each key receives from all real queries, before dropout, (B, H, M).
        return_weight_norms: also return the sum of the squares of each query's weights, before dropout, (B, H, N).
        return_lse: also return the logarithm of the sum of the exponentials of each query's scores, (B, H, N), so
            that a pair's softmax is exp(score − log-sum); −∞ for a query without any key, which passes no gradient.
        return_weights: also return the weights, before dropout, (B, H, N, M); this costs N × M memory.
        backend: `reference` (whole maps), `blockwise` (no N × M memory), `sdpa` (torch's kernels; plain attention
            only), `triton` (fused kernels, on a GPU), or `auto`, which picks one; `explain` tells which. A backend
            asked for by name is never replaced.

    Returns:
        The output (B, H, N, width of v) in q's dtype, or a tuple of (output, received, weight_norms, lse, weights)
        with what was asked, in that order, all differentiable. All but the output are float32 for half-precision
        inputs.

    Raises:
        TypeError: a dtype or type is wrong; the message names the argument.
        ValueError: a shape or value is wrong; the message names the argument, what was expected and what came.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> out, received = hw.attend(x, x, x, scheme=hw.DistanceAware(heads=4), return_received=True)
        >>> received.sum(-1).allclose(torch.full((2, 4), 10.0))
        True
        >>> texts = torch.randn(1, 4, 3 + 7, 16)  # of 3 and of 7 tokens
        >>> hw.attend(texts, texts, texts, scheme=hw.Plain(), cu_seqlens=[0, 3, 10]).shape
        torch.Size([1, 4, 10, 16])
    """
    q, k, v = check_tensors(q, k, v)
    with disable_autocast(q.device.type):
        problem = _problem(
            q,
            k,
            v,
            scheme=scheme,
            key_padding=key_padding,
            query_padding=query_padding,
            causal=causal,
            mask=mask,
            position_bias=position_bias,
            offset=offset,
            dropout=dropout,
            scale=scale,
            cu_seqlens=cu_seqlens,
            return_received=return_received,
            return_weight_norms=return_weight_norms,
            return_lse=return_lse,
            return_weights=return_weights,
        )
        chosen = choose(problem, backend).backend
        if problem.cu_seqlens is None or chosen == "triton":
            attended = BACKENDS[chosen](problem)
        else:
            attended = joined([BACKENDS[chosen](text) for text in problem.texts()])
    extras = (attended.received, attended.weight_norms, attended.lse, attended.weights)
    asked = [x for x in extras if x is not None]
    return (attended.output, *asked) if asked else attended.output


def explain(q: Tensor, k: Tensor, v: Tensor, *, backend: Backend = "auto", **options: Any) -> BackendChoice:
    """Which backend `attend` would take for these arguments, and why.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(1, 4, 2048, 64)
        >>> print(hw.explain(x, x, x, scheme=hw.DistanceAware(heads=4)).backend)
        blockwise
    """
    q, k, v = check_tensors(q, k, v)
    with disable_autocast(q.device.type):
        return choose(_problem(q, k, v, **options), backend)


def choose(problem: AttentionInputs, backend: Backend) -> BackendChoice:
    one_of("backend", backend, BACKEND_NAMES)
    if backend != "auto":
        reason = WHY_UNSUPPORTED[backend](problem) if backend in WHY_UNSUPPORTED else None
        if reason is not None:
            raise ValueError(f"backend={backend!r} cannot do this: {reason}; backend='auto' picks one that can")
        return BackendChoice(backend, "asked for by name")
    if problem.cu_seqlens is not None and (
        problem.v.device.type != "cuda" or triton_backend.why_unsupported(problem) is not None
    ):
        longest = max(problem.texts(), key=lambda text: text.shape[2], default=problem)
        if longest is not problem:
            choice = choose(longest, backend)
            return BackendChoice(choice.backend, f"each text on its own, for the longest: {choice.reason}")
    even = problem.terms.q.shape[3] == problem.v.shape[3]  # else torch falls back to whole maps
    if even and sdpa.why_unsupported(problem) is None:
        return BackendChoice("sdpa", "plain attention, which torch has fused kernels for")
    if problem.v.device.type == "cuda" and triton_backend.why_unsupported(problem) is None:
        return BackendChoice("triton", "fused kernels on the GPU")
    if torch.compiler.is_exporting():
        return BackendChoice("reference", "exported programs hold plain operators, for any length")
    batch, heads, n, m = problem.shape
    if batch * heads * n * m >= (MANY_PAIRS_ON_CPU if problem.v.device.type == "cpu" else MANY_PAIRS):
        return BackendChoice("blockwise", f"{_maps(problem)} are too large to hold")
    return BackendChoice("reference", f"{_maps(problem)} are small enough to hold")


def _maps(problem: AttentionInputs) -> str:
    """In words; for a compiler without sizes, since it would compile anew for each that was written out."""
    if torch.compiler.is_compiling():
        return "maps"
    batch, heads, n, m = problem.shape
    return f"maps of {batch} × {heads} × {n} × {m} weights"


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    key_padding: Tensor | None = None,
    query_padding: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    offset: int = 0,
    dropout: float = 0.0,
    scale: float | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
    return_received: bool = False,
    return_weight_norms: bool = False,
    return_lse: bool = False,
    return_weights: bool = False,
) -> AttentionInputs:
    check_scheme(scheme, q)
    batch, heads, n, head_dim = q.shape
    m = k.shape[2]
    if isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise TypeError(f"offset must be an int, got {offset!r}")
    if offset < 0:
        raise ValueError(f"offset, the position of the first query, must be 0 or more, got {offset}")
    check_share("dropout", dropout)
    if scale is not None and not scale > 0.0:
        raise ValueError(f"scale must be above 0, got {scale}")
    if cu_seqlens is not None:
        others = {
            "key_padding": key_padding is not None,
            "query_padding": query_padding is not None,
            "mask": mask is not None,
            "position_bias": position_bias is not None,
            "offset": bool(offset),
            "return_weights": return_weights,
        }
        cu_seqlens = cumulative_lengths(cu_seqlens, q, k, [name for name, given in others.items() if given])
    terms = scheme(q, k, offset=offset)
    if terms.value_table is not None and terms.value_table.shape[2] != v.shape[3]:
        raise ValueError(f"scheme adds vectors of width {terms.value_table.shape[2]} to v, which is {v.shape[3]} wide")
    return AttentionInputs(
        terms=terms,
        v=v,
        scale=scheme.scale(head_dim) if scale is None else float(scale),
        offset=offset,
        causal=causal,
        key_padding=padding("key_padding", key_padding, batch, m, q.device),
        query_padding=padding("query_padding", query_padding, batch, n, q.device),
        mask=broadcastable("mask", mask, (batch, heads, n, m), q.device),
        bias=broadcastable("position_bias", position_bias, (batch, heads, n, m), q.device),
        dropout=dropout,
        cu_seqlens=cu_seqlens,
        want_received=return_received,
        want_squares=return_weight_norms,
        want_log_sums=return_lse,
        want_weights=return_weights,
        out_dtype=q.dtype,
    )
