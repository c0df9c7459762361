"""Cached calls: a repeated call of `attend` launches its kernels without checks and planning.

For short sequences, checking the arguments and planning the launches takes longer than the kernels. Both depend only on
layouts and options. The first call with some layouts and options is computed by the Triton backend, and its options
and launches are kept. Later calls with the same key use them:

- The key of the arguments of `attend` gives a `CallForm`. If it exists, these arguments are valid.
- The scheme gives the tensors that kernels get. Parameters that are such tensors are read directly; other schemes are
  evaluated. The layouts of these tensors, with a few numbers, are the key of a `CachedCall`.

Cached calls cover plain tensors in eager mode. Packed sequences of schemes with dense tables, sequences whose queries
and keys have different lengths, received attention or lse of schemes with tables, masks or biases, and other results
are not cached. A packed batch usually has another number of tokens than the one before, so its call is built once and
used by the other layers of a model.
"""

from collections import deque
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from headwise import _compat
from headwise.attention.checks import disable_autocast, is_autocast_enabled
from headwise.attention.operators import is_plain_eager
from headwise.attention.schemes import Alibi, DistanceAware, Plain, RelativePositions, Scheme
from headwise.attention.triton_backend.cached_dense import DenseCall, can_bind
from headwise.attention.triton_backend.cached_passes import RECEIVED, BoundCall, CachedCall, PlannedCall
from headwise.attention.triton_backend.cached_tables import TableCall
from headwise.attention.triton_backend.decoding import DecodeCall, can_decode, needs_gradient
from headwise.attention.triton_backend.native import NativeCall, native_call
from headwise.attention.triton_backend.operator import scalar_arguments
from headwise.attention.triton_backend.scheme_inputs import SchemeInputs, named_tensors, scheme_inputs
from headwise.attention.triton_backend.sequence_bounds import token_bounds
from headwise.attention.types import AttentionInputs, AttentionOutput, SchemeTerms

MAX_CACHED_CALLS = 1000

#: A growing cache of keys and values gives a new key in each step, which the layers of a model share.
MAX_DECODING_KEYS = 100

PLAIN_TYPES = (Tensor, Parameter)

NUMBER_TYPES = (float, int, bool, type(None))

#: Tensors that a `BoundCall` does not take.
NEEDS_PLAN = frozenset(("bias", "sinks", "mask", "dense_table"))


class DirectParameters(NamedTuple):
    """Parameters of a scheme that kernels get."""

    options: Any  # of the scheme, on which launches depend
    tensors: tuple[Tensor, ...]  # in the order of `SchemeInputs`


def distance_parameters(scheme: DistanceAware) -> DirectParameters | None:
    """Return w and v of the learnable sigmoid; None for other mappings, which the kernels do not have."""
    w, v = scheme._parameters.get("w"), scheme._parameters.get("v")
    if w is None or v is None or scheme.adjust != "early-multiply":
        return None
    return DirectParameters(scheme.rectify, (as_float32(w), as_float32(v)))


def table_parameters(scheme: RelativePositions) -> DirectParameters | None:
    """Return the key table and the value table of relative positions, those that there are.

    None for tables that are no parameters, such as buffers and those of the replicas of `nn.DataParallel`.
    """
    parameters = scheme._parameters
    key_table, value_table = parameters.get("key_table"), parameters.get("value_table")
    if (key_table is None and scheme.key_table is not None) or (value_table is None and scheme.value_table is not None):
        return None
    tables = tuple([table for table in (key_table, value_table) if table is not None])
    return DirectParameters((scheme.k, key_table is None), tables)


def slope_parameters(scheme: Alibi) -> DirectParameters | None:
    """Return the slopes of ALiBi."""
    slopes = scheme._parameters.get("slopes")
    return None if slopes is None else DirectParameters(None, (as_float32(slopes),))


#: Functions that return the parameters of schemes that the kernels get, or None if a scheme must be evaluated.
#: They read `_parameters`, because access by name takes several times as long.
DIRECT_PARAMETERS: dict[type[Scheme], Callable[[Any], DirectParameters | None]] = {
    Plain: lambda _: DirectParameters(None, ()),
    DistanceAware: distance_parameters,
    RelativePositions: table_parameters,
    Alibi: slope_parameters,
}


class CallForm:
    """The resolved options of all calls with one key, and their cached calls by the layouts of the scheme's tensors."""

    def __init__(self, inputs: AttentionInputs) -> None:
        self.offset = inputs.offset
        self.dtype = inputs.out_dtype
        self.calls: dict[Any, CachedCall | NativeCall] = {}


_forms: dict[Any, CallForm] = {}
#: The keys of calls with one query, the oldest first.
_decoding_keys: deque[Any] = deque()


def call_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    key_padding: Tensor | None,
    causal: bool,
    offset: int | None,
    dropout: Any,
    scale: Any,
    backend: object,
    return_received: bool,
    return_lse: bool,
    others: tuple[Any, ...] | None,
) -> Any:
    """Return everything about the arguments of `attend` that a call depends on, or None if such calls are not cached.

    Args:
        others: window, softcap, mask, position_bias, sinks, query_padding and cu_seqlens; None if all are None.
    """
    if not (backend == "triton" or (backend == "auto" and type(q) in PLAIN_TYPES and q.is_cuda)):
        return None
    if not (type(q) in PLAIN_TYPES and type(k) in PLAIN_TYPES and type(v) in PLAIN_TYPES):
        return None
    dtype = q.dtype
    if k.dtype != dtype or v.dtype != dtype:  # autocast converts them
        return None
    if not is_plain_eager(q) or _compat.is_forward_ad_active() or not isinstance(scheme, Scheme):
        return None
    if _compat.has_hooks(scheme) or q.dim() != 4:
        return None
    head_dim = q.shape[3]
    scale = scheme.scale(head_dim) if scale is None else scale
    if not (is_constant(scale) and is_constant(dropout) and is_constant(causal)):
        return None
    device = q.device
    has_autocast = is_autocast_enabled(device.type)
    if has_autocast and dtype != torch.get_autocast_dtype(device.type):
        return None
    padding_key: Any = None
    if key_padding is not None:
        if type(key_padding) not in PLAIN_TYPES or key_padding.dtype != torch.bool or not key_padding.is_contiguous():
            return None
        padding_key = (key_padding.shape, key_padding.device, key_padding.data_ptr() % 16)
    if others is not None:
        others = others_key(device, *others)
        if others is None:
            return None
    return (
        type(scheme), scheme.heads, scheme.head_dim, scale,
        dtype, device, k.device, v.device,
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(),
        q.data_ptr() % 16, k.data_ptr() % 16, v.data_ptr() % 16, padding_key, causal, offset, dropout, backend,
        return_received, return_lse, _compat.uses_tf32(), others,
    )  # fmt: skip


def others_key(device: torch.device, window: Any, softcap: Any, *tensors: Any) -> tuple[Any, ...] | None:
    """Return the part of the key for arguments that most calls do not have, or None if such calls are not cached."""
    if window is not None and not (type(window) is tuple and all(map(is_constant, window))):
        return None
    if not is_constant(softcap):
        return None
    if not all(x is None or type(x) in PLAIN_TYPES for x in tensors):
        return None
    query_padding, cu_seqlens = tensors[3:]
    if query_padding is not None and (query_padding.dtype != torch.bool or not query_padding.is_contiguous()):
        return None  # such as lengths
    if cu_seqlens is not None and cu_seqlens.device != device:
        return None
    layouts = (None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16) for x in tensors)
    return window, softcap, *layouts


def is_constant(x: object) -> bool:
    """Return whether x is None or a number whose value cannot change, unlike that of a tensor or an array."""
    return type(x) in NUMBER_TYPES or isinstance(x, Number)


def attend_cached(
    key: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    key_padding: Tensor | None,
    others: tuple[Any, ...] | None,
) -> Tensor | AttentionOutput | None:
    """Compute attention by a cached call; None if there is none.

    Args:
        key: the key of these arguments.
        q: queries.
        k: keys.
        v: values.
        scheme: the scheme.
        key_padding: the mask of real keys.
        others: as in `call_key`.
    """
    form = _forms.get(key)
    if form is None:
        return None
    num_queries = q.shape[2]
    get_parameters = DIRECT_PARAMETERS.get(type(scheme))
    parameters = None if get_parameters is None else get_parameters(scheme)
    if parameters is not None:
        inputs = (q, k, v, *parameters.tensors, *other_tensors(key_padding, others, num_queries))
        call = form.calls.get(layouts_key(parameters_key(parameters), inputs, num_queries))
        return None if call is None else call.attend(inputs)
    with disable_autocast(q.device.type):
        terms = scheme(q, k, offset=form.offset)
        tensors, max_offset = scheme_inputs(terms, v, form.dtype, form.offset)
        inputs = (*drop_none(tensors), *other_tensors(key_padding, others, num_queries))
        call = form.calls.get(layouts_key(tensors_key(terms, tensors, max_offset), inputs, num_queries))
        return None if call is None else call.attend(inputs)


def attend_first(key: Any, inputs: AttentionInputs, scheme: Scheme) -> Tensor | AttentionOutput | None:
    """Compute attention by a new cached call; None if the Triton backend must compute it without a cache.

    Args:
        key: the key of the arguments.
        inputs: the checked arguments, which the Triton backend supports.
        scheme: the scheme.
    """
    terms = inputs.terms
    if not (inputs.v.numel() and terms.q.numel() and terms.k.numel()):
        return None
    get_parameters = DIRECT_PARAMETERS.get(type(scheme))
    parameters = None if get_parameters is None else get_parameters(scheme)
    if parameters is not None and not all(x.is_contiguous() for x in parameters.tensors):  # `scheme_inputs` copies them
        return None
    tensors, max_offset = scheme_inputs(terms, inputs.v, inputs.out_dtype, inputs.offset)
    by_name = named_tensors(inputs, tensors)
    call_tensors = tuple(by_name.values())
    layouts = tensors_key(terms, tensors, max_offset) if parameters is None else parameters_key(parameters)
    if layouts is None:
        return None
    scalars = scalar_arguments(inputs, max_offset)
    call: CachedCall | None
    if terms.q.shape[2] == 1 and not needs_gradient(call_tensors):
        is_decoding = can_decode(inputs, by_name) and not inputs.want_lse
        call = DecodeCall(tuple(by_name), scalars, call_tensors) if is_decoding else None
    else:
        call = build_call(terms, tuple(by_name), scalars, call_tensors, has_lse=inputs.want_lse)
    if call is None:
        return None
    result = call.attend(call_tensors)
    form = get_form(key, inputs, is_decoding=isinstance(call, DecodeCall))
    native = native_call(call, inputs.v.device) if isinstance(call, BoundCall) else None
    form.calls[layouts_key(layouts, call_tensors, terms.q.shape[2])] = native or call
    return result


def get_form(key: Any, inputs: AttentionInputs, *, is_decoding: bool) -> CallForm:
    """Return the form with this key, a new one if there is none. Old ones are dropped if there are too many."""
    if num_calls() >= MAX_CACHED_CALLS:
        _forms.clear()
    form = _forms.get(key)
    if form is None:
        form = _forms[key] = CallForm(inputs)
        if is_decoding:
            _decoding_keys.append(key)
        if len(_decoding_keys) > MAX_DECODING_KEYS:
            _forms.pop(_decoding_keys.popleft(), None)
    return form


def layouts_key(layouts: Any, inputs: tuple[Tensor, ...], num_queries: int) -> Any:
    """Return the key of a form's calls: calls with one query have other kernels if no gradient is needed."""
    return (layouts, needs_gradient(inputs)) if num_queries == 1 else layouts


def build_call(
    terms: SchemeTerms,
    names: tuple[str, ...],
    scalars: tuple[Any, ...],
    tensors: tuple[Tensor, ...],
    *,
    has_lse: bool = False,
) -> CachedCall | None:
    """Return a new cached call, or None if there is none for such terms and layouts; see `CachedCall`."""
    tables = [table for table in (terms.key_table, terms.value_table) if table is not None]
    if "seq_starts" in names and "dense_table" in names:
        return None
    has_contiguous_rows = all(x.stride(-1) == 1 for x in tensors[:3])  # of q, k and v
    is_bound = NEEDS_PLAN.isdisjoint(names) and has_contiguous_rows
    if (scalars[RECEIVED] or has_lse) and (tables or not is_bound):
        return None
    if "key_table" in names or "value_table" in names:
        is_simple = has_contiguous_rows and terms.biases is None and all(x.is_contiguous() for x in tables)
        return TableCall(names, scalars, tensors) if is_simple and NEEDS_PLAN.isdisjoint(names) else None
    if is_bound:
        return BoundCall(names, scalars, tensors, has_lse=has_lse)
    call = PlannedCall(names, scalars, tensors)
    is_dense = "dense_table" in names and NEEDS_PLAN.isdisjoint(set(names) - {"dense_table"})
    return DenseCall(names, scalars, tensors) if is_dense and can_bind(call.plan) else call


def drop_none(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Return the tensors that are not None."""
    return [x for x in tensors if x is not None]


def other_tensors(key_padding: Tensor | None, others: tuple[Any, ...] | None, num_tokens: int) -> list[Tensor]:
    """Return the tensors of a call besides those of the scheme, in the order of `attend_first`."""
    if others is None:
        return [] if key_padding is None else [key_padding]
    _, _, mask, bias, sinks, query_padding, cu_seqlens = others
    if cu_seqlens is None:
        bounds: tuple[Tensor | None, Tensor | None] = None, None
    else:  # with which most other options cannot be combined
        bounds = token_bounds(cu_seqlens, num_tokens)
    mask, bias = (x if x is None or x.dim() == 4 else x[(None,) * (4 - x.dim())] for x in (mask, bias))
    sinks = None if sinks is None else sinks.float().contiguous()
    return drop_none((bias, sinks, mask, key_padding, query_padding, *bounds))


def parameters_key(parameters: DirectParameters) -> Any:
    """Return everything about the parameters of a scheme that launches depend on; None if these are not cached."""
    key = [parameters.options]
    for x in parameters.tensors:
        if type(x) not in PLAIN_TYPES:  # such as a distributed tensor
            return None
        key += (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16)
    return tuple(key)


def tensors_key(terms: SchemeTerms, tensors: SchemeInputs, max_offset: int) -> Any:
    """Return everything about the tensors of a scheme that launches depend on; None if these are not cached."""
    if not all(x is None or type(x) in PLAIN_TYPES for x in tensors):
        return None
    layouts = [None if x is None else (x.dtype, x.shape, x.stride(), x.device, x.data_ptr() % 16) for x in tensors]
    kind = terms.adjust, terms.rectify, terms.coefficients is None, terms.biases is None  # whether kernels compute it
    return *kind, terms.is_full_table, terms.table_start, max_offset, *layouts


def as_float32(x: Tensor) -> Tensor:
    """Return a tensor in float32; `float()` takes time even if nothing is to be done."""
    return x if x.dtype == torch.float32 else x.float()


def num_calls() -> int:
    """Return how many calls are cached."""
    return sum(len(form.calls) for form in list(_forms.values()))  # other threads may add some


def clear_calls() -> None:
    """Clear the cache of calls."""
    _forms.clear()
    _decoding_keys.clear()
