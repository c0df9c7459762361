"""Checks of the arguments of `attend`. Messages name the argument, the expected and the actual value."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.schemes import Scheme
from headwise.attention.types import SchemeTerms

#: The first dimension of a term that all heads can share.
ANY_HEADS = "1 or H"

#: How to pass the masks of Hugging Face's tokenizers, which are int64.
HUGGING_FACE_HINT = "; pass Hugging Face's attention_mask (1: a real token) as key_padding=attention_mask.bool()"


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Check q, k and v, and return them in autocast's dtype if autocast is enabled."""
    tensors = {"q": q, "k": k, "v": v}
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, heads, length, width), got shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on q's device {q.device}, got {x.device}")
    if k.shape[0] != q.shape[0] or v.shape[0] != q.shape[0]:
        raise ValueError(f"q, k and v must have the same batch size, got {q.shape[0]}, {k.shape[0]} and {v.shape[0]}")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(
            f"k and v must have the same heads and length, got {tuple(k.shape[1:3])} and {tuple(v.shape[1:3])}"
        )
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"q and k must have the same width, got {q.shape[3]} and {k.shape[3]}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q's heads must be a multiple of k's, got {q.shape[1]} and {k.shape[1]}")
    q, k, v = to_autocast_dtype(q, k, v)
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    return q, k, v


def disable_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context that disables autocast, if it is enabled."""
    return torch.autocast(device, enabled=False) if is_autocast_enabled(device) else nullcontext()


def to_autocast_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in autocast's dtype if autocast is enabled for q's device; float64 stays."""
    device = q.device.type
    if not is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (x if x.dtype in (dtype, torch.float64) else x.to(dtype) for x in (q, k, v))
    return q, k, v


def is_autocast_enabled(device: str) -> bool:
    """Return whether autocast is enabled for a type of device. The meta device has none."""
    return device != "meta" and torch.is_autocast_enabled(device)


def check_is_scheme(scheme: object) -> Scheme:
    """Return the scheme.

    Raises:
        TypeError: it is not an instance of `Scheme`.
    """
    if not isinstance(scheme, Scheme):
        hint = " (an instance, not the class)" if isinstance(scheme, type) else ""
        raise TypeError(f"scheme must be a headwise Scheme such as Plain(){hint}, got {_describe(scheme)}")
    return scheme


def check_scheme(scheme: Scheme, q: Tensor) -> None:
    """Check that the scheme has the heads and the head width of q."""
    check_is_scheme(scheme)
    if scheme.heads is not None and scheme.heads != q.shape[1]:
        raise ValueError(f"scheme has heads={scheme.heads} but q has {q.shape[1]} heads")
    if scheme.head_dim is not None and scheme.head_dim != q.shape[3]:
        raise ValueError(f"scheme has head_dim={scheme.head_dim} but q's heads are {q.shape[3]} wide")


def check_is_terms(terms: object, scheme: Scheme) -> None:
    """Check that a scheme returned terms."""
    if not isinstance(terms, SchemeTerms):
        raise TypeError(f"{type(scheme).__name__}.forward must return SchemeTerms, got {_describe(terms)}")


def check_terms(terms: SchemeTerms, scheme: Scheme, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check the shapes and devices of the terms that a scheme returned. In `shapes`, None stands for any size."""
    heads, width = q.shape[1], terms.q.shape[3] if terms.q.dim() == 4 else None
    position_width = None if terms.position_q is None else terms.position_q.shape[-1]
    w, sharpness = terms.sigmoid or (None, None)
    shapes: dict[str, tuple[Tensor | None, tuple[int | str | None, ...]]] = {
        "q": (terms.q, (*q.shape[:3], None)),
        "k": (terms.k, (*k.shape[:3], width)),
        "position_q": (terms.position_q, (*q.shape[:3], None)),
        "position_k": (terms.position_k, (None, None, k.shape[2], position_width)),
        "key_table": (terms.key_table, (ANY_HEADS, None, width)),
        "query_table": (terms.query_table, (ANY_HEADS, None, width)),
        "value_table": (terms.value_table, (ANY_HEADS, None, v.shape[3])),
        "relative_bias": (terms.relative_bias, (ANY_HEADS, None)),
        "biases": (terms.biases, (2, heads, width)),
        "slopes": (terms.slopes, (heads,)),
        "w of sigmoid": (w, (heads,)),
        "v of sigmoid": (sharpness, (heads,)),
    }
    for name, (x, sizes) in shapes.items():
        if x is not None and x.device != q.device:
            raise ValueError(
                f"{type(scheme).__name__} returned {name} on {x.device}, but q is on {q.device}; "
                "move the scheme or the inputs with .to(device)"
            )
        if x is not None and not _has_shape(x, sizes, heads):
            expected = ", ".join("any" if size is None else str(size) for size in sizes)
            raise ValueError(
                f"{type(scheme).__name__} returned {name} of shape {tuple(x.shape)}; expected ({expected}) for {heads} "
                "heads"
            )


def _has_shape(x: Tensor, sizes: tuple[int | str | None, ...], heads: int) -> bool:
    if x.dim() != len(sizes):
        return False
    possible = [(1, heads) if size == ANY_HEADS else (size,) for size in sizes]
    return all(None in allowed or actual in allowed for actual, allowed in zip(x.shape, possible, strict=True))


def _describe(value: object) -> str:
    """Return a value in one short line: a tensor or module would take many."""
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else type(value).__name__


def check_number(name: str, value: object) -> None:
    """Check that the value is a number: an int or float of Python, numpy or torch, without a gradient."""
    if not isinstance(value, int | float | torch.SymInt | torch.SymFloat) and not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {_describe(value)}")
    if isinstance(value, Tensor) and value.requires_grad:
        hint = "; to train it, multiply q by it" if name == "scale" else ""
        raise TypeError(f"{name} gets no gradient; pass a number or a detached tensor{hint}")


def check_probability(name: str, value: float) -> float:
    """Return the value if it lies in [0, 1)."""
    check_number(name, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    return value


def to_python_int(value: Any) -> Any:
    """Return an integer of numpy as an int, and any other value as it is."""
    return value if isinstance(value, int) or not isinstance(value, Integral) else int(value)


def check_offset(offset: int | None, n: int, m: int, *, is_aligned: bool) -> int:
    """Return the position of the first query.

    Args:
        offset: the position, an int of at least 0, or None for the default.
        n: number of queries.
        m: number of keys.
        is_aligned: whether by default the last query has the position of the last key, instead of the first query
            having that of the first key.
    """
    if offset is None:
        if is_aligned and 0 < m < n:
            raise ValueError(
                f"causal or windowed attention with more queries ({n}) than keys ({m}) needs an explicit offset, "
                "the position of the first query"
            )
        return m - n if is_aligned and m >= n else 0
    offset = to_python_int(offset)
    if isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise TypeError(f"offset must be an int, got {_describe(offset)}")
    if offset < 0:
        raise ValueError(f"offset, the position of the first query, must be 0 or more, got {offset}")
    return offset


def check_window(window: tuple[int, int] | None, *, causal: bool) -> tuple[int, int] | None:
    """Return the window, including the limit of causal attention, or None if there is no window."""
    if window is None:
        return None
    limits = [to_python_int(x) for x in window] if isinstance(window, tuple | list) else []
    if len(limits) != 2 or any(isinstance(x, bool) or not isinstance(x, int | torch.SymInt) or x < -1 for x in limits):
        raise ValueError(
            "window must be (left, right): how many positions before and after its own a query attends to, "
            f"0 or more, or -1 for all; got {window!r}"
        )
    left, right = limits
    return left, (0 if causal else right)


def check_softcap(softcap: float | None) -> float | None:
    """Return the softcap, a number above 0 or None."""
    if softcap is not None:
        check_number("softcap", softcap)
    if softcap is not None and not 0.0 < softcap < float("inf"):
        raise ValueError(f"softcap must be above 0 and finite, or None; got {softcap}")
    return None if softcap is None else float(softcap)


def check_sinks(sinks: Tensor | None, heads: int, device: torch.device) -> Tensor | None:
    """Return the sinks, one logit per query head."""
    if sinks is None:
        return None
    sinks = _check_tensor("sinks", sinks, device)
    if sinks.shape != (heads,) or not sinks.is_floating_point():
        raise ValueError(
            f"sinks must be one floating-point logit per query head, ({heads},); got {sinks.dtype}{list(sinks.shape)}"
        )
    return sinks


def to_padding_mask(name: str, value: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor | None:
    """Convert lengths (batch,) to a boolean mask (batch, length), True for real tokens; masks are only checked."""
    if value is None:
        return None
    value = _check_tensor(name, value, device)
    if value.dim() == 1 and not value.is_floating_point() and value.dtype != torch.bool:
        if value.shape[0] != batch:
            raise ValueError(f"{name} lengths must be ({batch},), got shape {tuple(value.shape)}")
        if _is_readable(value) and batch and not (int(value.min()) >= 0 and int(value.max()) <= length):
            raise ValueError(f"{name} lengths must lie between 0 and {length}, got {value.tolist()}")
        return torch.arange(length, device=device) < value[:, None]
    if value.dtype != torch.bool:
        raise TypeError(
            f"{name} must be boolean (True: a real token) or integer lengths, got {value.dtype}{HUGGING_FACE_HINT}"
        )
    if value.shape != (batch, length):
        raise ValueError(f"{name} must be ({batch}, {length}), or lengths ({batch},); got shape {tuple(value.shape)}")
    return value


def check_packed(q: Tensor, k: Tensor, *, same_length: bool, **incompatible: bool) -> None:
    """Check that a call has the shapes and options of concatenated sequences.

    Args:
        q: queries.
        k: keys.
        same_length: whether queries and keys have the same sequences.
        incompatible: whether the call uses options that cannot be combined with `cu_seqlens`, by name.
    """
    names = [name for name, is_used in incompatible.items() if is_used]
    if names:
        raise ValueError(f"cu_seqlens cannot be combined with {', '.join(names)}")
    if q.shape[0] != 1:
        raise ValueError(f"cu_seqlens needs sequences concatenated in a batch of one, got batch {q.shape[0]}")
    if same_length and (k.shape[2] != q.shape[2] or not q.shape[2]):
        raise ValueError(
            "cu_seqlens needs as many keys as queries, at least one, unless cu_seqlens_k is given; "
            f"got {q.shape[2]} queries and {k.shape[2]} keys"
        )


def to_cu_seqlens(name: str, value: Tensor | Sequence[int], length: int, device: torch.device) -> Tensor:
    """Check cumulative lengths of sequences, from 0 to `length`, and return them as a tensor on this device."""
    cu_seqlens = value if isinstance(value, Tensor) else torch.tensor(value)
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.is_floating_point() or cu_seqlens.dtype == torch.bool:
        raise ValueError(
            f"{name} must be cumulative lengths, integers (sequences + 1,); "
            f"got {cu_seqlens.dtype}{list(cu_seqlens.shape)}"
        )
    if _is_readable(cu_seqlens):
        increases = bool((cu_seqlens.diff() >= 0).all())
        if not (cu_seqlens[0] == 0 and cu_seqlens[-1] == length and increases):
            preview = ", ".join([*map(str, cu_seqlens[:8].tolist()), *(["…"] if len(cu_seqlens) > 8 else [])])
            raise ValueError(f"{name} must increase from 0 to the number of tokens, {length}; got [{preview}]")
    return cu_seqlens.to(device, non_blocking=True)


def to_cu_seqlens_pair(
    cu_seqlens: Tensor | Sequence[int] | None,
    cu_seqlens_k: Tensor | Sequence[int] | None,
    n: int,
    m: int,
    device: torch.device,
    *,
    is_aligned: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Check the cumulative lengths of queries and keys, and return them as tensors on this device.

    Args:
        cu_seqlens: those of the queries.
        cu_seqlens_k: those of the keys, or None if they are those of the queries.
        n: number of queries.
        m: number of keys.
        device: device of the result.
        is_aligned: whether the last query of a sequence has the position of its last key.
    """
    if cu_seqlens is None and cu_seqlens_k is None:
        return None, None
    if cu_seqlens is None:
        raise ValueError("cu_seqlens_k needs cu_seqlens, the cumulative lengths of the queries' sequences")
    q_lengths = to_cu_seqlens("cu_seqlens", cu_seqlens, n, device)
    if cu_seqlens_k is None:
        return q_lengths, None
    k_lengths = to_cu_seqlens("cu_seqlens_k", cu_seqlens_k, m, device)
    if len(q_lengths) != len(k_lengths):
        raise ValueError(
            f"cu_seqlens and cu_seqlens_k must have equally many sequences, got {len(q_lengths) - 1} and "
            f"{len(k_lengths) - 1}"
        )
    if is_aligned and _is_readable(q_lengths) and _is_readable(k_lengths):
        num_queries, num_keys = q_lengths.diff(), k_lengths.diff()
        has_more_queries = ((num_keys < num_queries) & (num_keys > 0)).nonzero()
        if len(has_more_queries):
            i = int(has_more_queries[0])
            raise ValueError(
                "causal or windowed attention needs at least as many keys as queries in each sequence; sequence "
                f"{i} of cu_seqlens has {int(num_queries[i])} queries and {int(num_keys[i])} keys"
            )
    return q_lengths, k_lengths


def to_broadcastable(
    name: str, value: Tensor | None, shape: tuple[int, int, int, int], device: torch.device
) -> Tensor | None:
    """Return a boolean mask or floating-point bias as (B or 1, H or 1, N or 1, M or 1)."""
    if value is None:
        return None
    value = _check_tensor(name, value, device)
    if name == "mask" and value.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean (True: attention is allowed), got {value.dtype}; "
            f"pass values to add to the scores as position_bias{HUGGING_FACE_HINT}"
        )
    if name != "mask" and not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")
    value_4d = value[(None,) * (4 - value.dim())] if value.dim() < 4 else value
    if value_4d.dim() != 4 or any(size not in (1, full) for size, full in zip(value_4d.shape, shape, strict=True)):
        raise ValueError(
            f"{name} must be broadcastable to {shape} = (batch, heads, queries, keys), got shape {tuple(value.shape)}"
        )
    return value_4d


def _check_tensor(name: str, value: Tensor, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.device != device:
        raise ValueError(f"{name} must be on q's device {device}, got {value.device}")
    return value


def _is_readable(value: Tensor) -> bool:
    """Return whether values can be read without synchronization: on a CPU, outside compilation and vmap."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling() and not _compat.is_functorch_tensor(value)
