"""Transformer-XL's relative positions. Dai et al. 2019, ACL, https://arxiv.org/abs/1901.02860

    s_ij = ((q_i + u)·k_j + (q_i + v)·W r_{i−j}) / √d                                          (section 3.3)

r is the sinusoidal embedding of the signed difference, W a learned projection, u and v are learned vectors of each
head. Encoders use it in both directions. The paper's recurrence is `causal` attention with the previous segment's
states prepended to the keys and `offset` set to their number.
"""

import torch
from torch import Tensor, nn

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.scheme import Scheme, check_positive, project
from headwise.attention.sinusoids import sinusoids_of_range
from headwise.attention.types import SchemeTerms, compute_dtype


class TransformerXL(Scheme):
    """Transformer-XL: biases for content and position, and projected sinusoidal embeddings of the difference i − j.

    Args:
        heads: number of query heads.
        head_dim: width of a head.
        dim: width of the sinusoidal embeddings, an even number; by default heads · head_dim, the model's width, as in
            the paper.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.TransformerXL(heads=4, head_dim=16)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads or head_dim < 1, or an odd dim.
    """

    heads: int
    head_dim: int

    def __init__(self, heads: int, head_dim: int, *, dim: int | None = None) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.head_dim = check_positive("head_dim", head_dim)
        self.dim = check_positive("dim", heads * head_dim if dim is None else dim)
        if self.dim % 2:
            raise ValueError(f"dim, the width of the sinusoidal embeddings, must be even, got {self.dim}")
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))
        self.projection = nn.Linear(self.dim, heads * head_dim, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for parameter in (self.u, self.v, self.projection.weight):
            parameter.normal_(0.0, 0.02)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        table_start = 1 - q.shape[2] - offset  # smallest relative position j − i
        dtype = q.dtype if q.is_cuda else compute_dtype(q.dtype)  # GPU kernels use the precision of their inputs
        table_end = max(table_start + 1, k.shape[2] - offset)
        embeddings = position_constant(  # of the differences i − j
            sinusoids_of_range, -table_start, -table_end, -1, self.dim, dtype, device=q.device
        )
        table = project(self.projection, embeddings, dtype)
        return SchemeTerms(
            q=q,
            k=k,
            biases=torch.stack((self.u, self.v)).to(compute_dtype(q.dtype)),
            key_table=table.unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1),
            table_start=table_start,
            is_full_table=True,
        )

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_dim={self.head_dim}, dim={self.dim}"
