"""Sinusoidal positions (Vaswani et al. 2017, section 3.5) and the rotation that shifts them."""

import torch
from torch import Tensor


def sinusoids(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """(…, L) positions → (…, L, dim): [sin ωp ; cos ωp] with ω_m = 10000^(−2m/dim).

    The angles are formed in float64 where the device has it: in float32 they are off by 7e-3 at position 65,536.
    """
    precise = torch.float32 if positions.device.type == "mps" else torch.float64
    frequencies = 10000.0 ** -(torch.arange(0, dim, 2, device=positions.device, dtype=precise) / dim)
    angles = positions.to(precise)[..., None] * frequencies
    return torch.cat([angles.sin().to(dtype), angles.cos().to(dtype)], dim=-1)


def rotate(a: Tensor, waves: Tensor, *, backwards: bool = False) -> Tensor:
    """rot_i(a), for which rot_i(a)·r_j = a·r_{i−j}, or a·r_{j−i} if backwards.

    a is (…, L, dim) and waves (L, dim) the sinusoids r_i of its positions.
    """
    sin, cos = waves.chunk(2, dim=-1)
    own, other = ([cos, cos], [sin, -sin]) if backwards else ([-cos, cos], [sin, sin])
    return torch.addcmul(a * torch.cat(own, dim=-1), a.roll(a.shape[-1] // 2, dims=-1), torch.cat(other, dim=-1))
