"""The Adapted Transformer. Yan et al. 2019, TENER, https://arxiv.org/abs/1911.04474

    s_ij = (q_i + u)·k_j + (q_i + v)·r_{i−j},  unscaled, k_j the layer's input itself                  (eq. 16–19)

r is the sinusoidal embedding of the signed difference, with the width of a head. Because a·r_{i−j} = rot_i(a)·r_j for a
rotation rot_i, the second term is the product of a rotated query and the embedding of the key's own position.

The authors' later release projects the keys, uses r_{j−i} with the query and adds a term with the key:

    s_ij = (q_i + u)·k_j + (q_i + v)·r_{j−i} + k_j·r_{i−j}

Its last two terms are one product of twice the width.
"""

import torch
from torch import Tensor, nn

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.scheme import Scheme, check_positive
from headwise.attention.sinusoids import rotate, sinusoids_of_range
from headwise.attention.types import SchemeTerms, compute_dtype


class Tener(Scheme):
    """TENER: sinusoidal embeddings of the signed difference i − j, with unscaled scores.

    Args:
        heads: number of query heads.
        head_dim: width of a head, an even number.
        released: use the score of the authors' later release instead of the paper's.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.Tener(heads=4, head_dim=16)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads or head_dim < 1, or an odd head_dim.
    """

    heads: int
    head_dim: int

    def __init__(self, heads: int, head_dim: int, *, released: bool = False) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.head_dim = check_positive("head_dim", head_dim)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, for sine and cosine, got {head_dim}")
        self.released = released
        self.projects_keys = released
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for bias in (self.u, self.v):
            nn.init.xavier_normal_(bias)

    def scale(self, head_dim: int) -> float:
        return 1.0

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        float_dtype = compute_dtype(q.dtype)
        dtype = q.dtype if q.is_cuda else float_dtype  # GPU kernels use the precision of their inputs

        def embed(start: int, length: int, dtype: torch.dtype) -> Tensor:
            return position_constant(
                sinusoids_of_range, start, start + length, 1, self.head_dim, dtype, device=q.device
            )

        query_embeddings = embed(offset, q.shape[2], float_dtype)
        position_k = embed(0, k.shape[2], dtype)[None, None]
        if q.is_cuda and not self.released:
            from headwise.attention.triton_backend import rotation  # imports Triton

            if rotation.can_rotate(q):
                content_q, position_q = rotation.rotate_queries(q, self.u, self.v, query_embeddings)
                return SchemeTerms(q=content_q, k=k.to(dtype), position_q=position_q, position_k=position_k)
        u, v = (bias.to(dtype)[:, None] for bias in (self.u, self.v))
        position_q = rotate(q + v, query_embeddings, inverse=self.released).to(dtype)
        if self.released:
            rotated_k = rotate(k, embed(0, k.shape[2], float_dtype), inverse=True).to(dtype)
            position_q = torch.cat([position_q, query_embeddings.to(dtype).expand_as(q)], dim=-1)
            position_k = torch.cat([position_k.expand_as(k), rotated_k], dim=-1)
        return SchemeTerms(q=q + u, k=k.to(dtype), position_q=position_q, position_k=position_k)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_dim={self.head_dim}, released={self.released}"
