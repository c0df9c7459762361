"""Rotary position embeddings. Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864

    s_ij = (R_i q_i)·(R_j k_j) / √d = q_i·R_{j−i} k_j / √d                                            (eq. 14–16)

R_p rotates the pair (x_m, x_{m+d/2}) by the angle p · base^(−2m/d), as in GPT-NeoX, Llama and transformers. The paper
rotates pairs of neighbors, which is the same up to a permutation of the columns.
"""

import torch
from torch import Tensor

from headwise.attention.schemes.scheme import Scheme, check_positive
from headwise.attention.types import SchemeTerms, compute_dtype


class Rotary(Scheme):
    """Rotary position embeddings (RoPE): queries and keys are rotated by angles that grow with their positions.

    Args:
        head_dim: width of a head, an even number.
        base: base of the angles' geometric series.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.Rotary(head_dim=16)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: head_dim < 1 or odd, or base not above 1.
    """

    head_dim: int

    def __init__(self, head_dim: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.head_dim = check_positive("head_dim", head_dim)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, for pairs of columns, got {head_dim}")
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        self.base = base

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=self._rotate(q, offset), k=self._rotate(k, 0))

    def _rotate(self, x: Tensor, first_position: int) -> Tensor:
        """Rotate x (B, heads, N, head_dim), at the positions first_position … first_position+N−1."""
        dtype = compute_dtype(x.dtype)
        angle_dtype = torch.float32 if x.device.type == "mps" else torch.float64
        positions = torch.arange(first_position, first_position + x.shape[2], device=x.device, dtype=angle_dtype)
        exponents = torch.arange(0, self.head_dim, 2, device=x.device, dtype=angle_dtype) / self.head_dim
        angles = positions[:, None] * self.base**-exponents
        first, second = x.to(dtype).chunk(2, dim=-1)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return rotated.to(x.dtype) if x.is_cuda else rotated  # GPU kernels use the precision of their inputs

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, base={self.base}"
