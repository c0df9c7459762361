"""Sinusoidal position embeddings (Vaswani et al. 2017, section 3.5) and the rotation that shifts them."""

import torch
from torch import Tensor


def sinusoids(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Return [sin ωp ; cos ωp] with ω_m = 10000^(−2m/dim), (…, L, dim) for positions (…, L).

    Angles are computed in float64 if the device supports it: float32 angles are off by 7e-3 at position 65,536.
    """
    angle_dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    frequencies = 10000.0 ** -(torch.arange(0, dim, 2, device=positions.device, dtype=angle_dtype) / dim)
    angles = positions.to(angle_dtype)[..., None] * frequencies
    return torch.cat([angles.sin().to(dtype), angles.cos().to(dtype)], dim=-1)


def sinusoids_of_range(start: int, stop: int, step: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the sinusoids of a range of positions."""
    return sinusoids(torch.arange(start, stop, step, device=device), dim, dtype)


def rotate(x: Tensor, embeddings: Tensor, *, inverse: bool = False) -> Tensor:
    """Return rot_i(x), defined by rot_i(x)·r_j = x·r_{i−j}, or x·r_{j−i} if inverse.

    Args:
        x: vectors, (…, L, dim).
        embeddings: sinusoids r_i of their positions, (L, dim).
        inverse: rotate so that the product depends on j − i.
    """
    sin, cos = embeddings.chunk(2, dim=-1)
    own, swapped = ([cos, cos], [sin, -sin]) if inverse else ([-cos, cos], [sin, sin])
    return torch.addcmul(x * torch.cat(own, dim=-1), x.roll(x.shape[-1] // 2, dims=-1), torch.cat(swapped, dim=-1))
