"""The operator's arguments, checked: each message names the argument, what was expected and what came."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from headwise.attention.schemes import Scheme


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, in autocast's dtype where autocast is on."""
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
    device = q.device.type
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)
        q, k, v = (x if x.dtype in (low, torch.float64) else x.to(low) for x in (q, k, v))
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    return q, k, v


def disable_autocast(device: str) -> AbstractContextManager[Any]:
    """Autocast has chosen the inputs' precision by now; inside, the precision of what is computed holds."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def check_is_scheme(scheme: object) -> Scheme:
    if not isinstance(scheme, Scheme):
        hint = " (an instance, not the class)" if isinstance(scheme, type) else ""
        raise TypeError(f"scheme must be a headwise Scheme such as Plain(){hint}, got {scheme!r}")
    return scheme


def check_share(name: str, value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    return value


def check_scheme(scheme: Scheme, q: Tensor) -> None:
    check_is_scheme(scheme)
    if scheme.heads is not None and scheme.heads != q.shape[1]:
        raise ValueError(f"scheme has heads={scheme.heads} but q has {q.shape[1]} heads")
    if scheme.head_dim is not None and scheme.head_dim != q.shape[3]:
        raise ValueError(f"scheme has head_dim={scheme.head_dim} but q's heads are {q.shape[3]} wide")


def padding(name: str, value: Tensor | None, batch: int, length: int, device: torch.device) -> Tensor | None:
    """Which tokens are real, (batch, length) boolean, from such a mask or from lengths."""
    if value is None:
        return None
    value = _tensor(name, value, device)
    if value.dim() == 1 and not value.is_floating_point() and value.dtype != torch.bool:
        if value.shape[0] != batch:
            raise ValueError(f"{name} lengths must be ({batch},), got shape {tuple(value.shape)}")
        if _readable(value) and batch and not (int(value.min()) >= 0 and int(value.max()) <= length):
            raise ValueError(f"{name} lengths must lie between 0 and {length}, got {value.tolist()}")
        return torch.arange(length, device=device) < value[:, None]
    if value.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean (True: a real token) or integer lengths, got {value.dtype}")
    if value.shape != (batch, length):
        raise ValueError(f"{name} must be ({batch}, {length}), or lengths ({batch},); got shape {tuple(value.shape)}")
    return value


def cumulative_lengths(value: Tensor | Sequence[int], q: Tensor, k: Tensor, others: list[str]) -> Tensor:
    """Where texts end that lie one after another, as a tensor on q's device."""
    length = q.shape[2]
    if others:
        raise ValueError(f"packed texts have no padding and start at 0: packed does not go with {', '.join(others)}")
    if q.shape[0] != 1 or k.shape[2] != length or not length:
        raise ValueError(
            "packed texts lie one after another in a batch of one, with as many keys as queries; "
            f"got batch {q.shape[0]}, {length} queries and {k.shape[2]} keys"
        )
    given = value if isinstance(value, Tensor) else torch.tensor(value)
    if given.dim() != 1 or len(given) < 2 or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(
            f"packed must be cumulative lengths, integers (texts + 1,); got {given.dtype}{list(given.shape)}"
        )
    if _readable(given) and not (given[0] == 0 and given[-1] == length and bool((given.diff() >= 0).all())):
        raise ValueError(f"packed must rise from 0 to the {length} tokens there are, got {_shown(given)}")
    return given.to(q.device, non_blocking=True)


def _shown(numbers: Tensor) -> str:
    """At most eight of the numbers."""
    shown = ", ".join(map(str, numbers[:8].tolist()))
    return f"[{shown}{', …' if len(numbers) > 8 else ''}]"


def broadcastable(
    name: str, value: Tensor | None, shape: tuple[int, int, int, int], device: torch.device
) -> Tensor | None:
    """A boolean mask or a floating-point bias as (B or 1, H or 1, N or 1, M or 1)."""
    if value is None:
        return None
    value = _tensor(name, value, device)
    if name == "mask" and value.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean (True: may be attended), got {value.dtype}; "
            "what is to be added to the scores goes into position_bias"
        )
    if name != "mask" and not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")
    whole = value[None, None] if value.dim() == 2 else value
    if whole.dim() != 4 or any(size not in (1, full) for size, full in zip(whole.shape, shape, strict=True)):
        raise ValueError(
            f"{name} must be {shape[2:]} or broadcastable to {shape} = (batch, heads, queries, keys), "
            f"got shape {tuple(value.shape)}"
        )
    return whole


def _tensor(name: str, value: Tensor, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.device != device:
        raise ValueError(f"{name} must be on q's device {device}, got {value.device}")
    return value


def _readable(value: Tensor) -> bool:
    """Whether looking at the numbers costs nothing and is possible: on a CPU, outside compilation and vmap."""
    return (
        value.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )
