"""DeBERTa's disentangled attention. He et al. 2021, ICLR, https://arxiv.org/abs/2006.03654

    s_ij = (q_i·k_j + q_i·Kʳ_δ + k_j·Qʳ_δ) / √(3d),   Kʳ = P W_k,   Qʳ = P W_q,   δ = clip(i−j, −k, k−1) + k   (eq. 4)

P holds a learned embedding for each relative position. The second term is content-to-position (c2p), the third one
position-to-content (p2c). The paper's equation has δ(j, i) in the third term. This is δ(i, j) of the authors' code and
of their released models. As in that code, the projection of Qʳ has a bias. One of Kʳ would add the same number to all
scores of a query. The paper's layers share P: assign the `embeddings` of one scheme to the others to share them.

DeBERTa-v2 and v3 have buckets whose sizes grow logarithmically instead of one row per relative position.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from headwise.attention.position_constants import position_constant
from headwise.attention.schemes.scheme import Scheme, check_positive, project
from headwise.attention.types import SchemeTerms, compute_dtype


class Disentangled(Scheme):
    """DeBERTa: queries are compared with embeddings of relative positions (c2p), and so are keys (p2c).

    Args:
        heads: number of query heads.
        head_dim: width of a head.
        max_distance: distance k from which on all keys of a direction share an embedding.
        num_buckets: number of buckets of each direction, for DeBERTa-v2's logarithmic buckets up to `max_distance`; an
            even number, 256 in DeBERTa-v2 and v3. By default, each relative position has an embedding.
        dim: width of the embeddings; by default heads · head_dim, the model's width, as in the paper.
        c2p: use the content-to-position term.
        p2c: use the position-to-content term.
        std: standard deviation of the initial embeddings. With 0, training starts from attention without positions.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.randn(2, 4, 10, 16)
        >>> hw.attend(x, x, x, scheme=hw.Disentangled(heads=4, head_dim=16, max_distance=64)).shape
        torch.Size([2, 4, 10, 16])

    Raises:
        ValueError: heads, head_dim, max_distance or dim < 1, an odd number of buckets or less than 4, a `max_distance`
            that is too small for the buckets, neither c2p nor p2c, or a negative standard deviation.
    """

    heads: int
    head_dim: int

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        max_distance: int = 512,
        num_buckets: int | None = None,
        dim: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.heads = check_positive("heads", heads)
        self.head_dim = check_positive("head_dim", head_dim)
        self.max_distance = check_positive("max_distance", max_distance)
        self.num_buckets = None if num_buckets is None else check_positive("num_buckets", num_buckets)
        if num_buckets is not None and (num_buckets < 4 or num_buckets % 2):
            raise ValueError(f"num_buckets must be even and at least 4, got {num_buckets}")
        if num_buckets is not None and max_distance <= num_buckets // 2 + 1:
            raise ValueError(
                f"max_distance must be above {num_buckets // 2 + 1} with {num_buckets} buckets, got {max_distance}"
            )
        if not (c2p or p2c):
            raise ValueError("c2p and p2c are both False; use Plain for attention without positions")
        if std < 0:
            raise ValueError(f"std must be 0 or more, got {std}")
        self.std = std
        self.dim = check_positive("dim", heads * head_dim if dim is None else dim)
        self.embeddings = nn.Parameter(torch.empty(2 * (num_buckets or max_distance), self.dim))
        self.key_projection = nn.Linear(self.dim, heads * head_dim, bias=False) if c2p else None
        self.query_projection = nn.Linear(self.dim, heads * head_dim) if p2c else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.embeddings.normal_(0.0, self.std)
        for projection in (self.key_projection, self.query_projection):
            if projection is not None:
                projection.weight.normal_(0.0, self.dim**-0.5)
                if projection.bias is not None:
                    projection.bias.zero_()

    def scale(self, head_dim: int) -> float:
        num_terms = 1 + (self.key_projection is not None) + (self.query_projection is not None)
        return 1.0 / math.sqrt(num_terms * head_dim)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        table_start = 1 - q.shape[2] - offset  # smallest relative position j − i
        table_end = max(table_start + 1, k.shape[2] - offset)
        rows = position_constant(
            disentangled_rows_of_range, table_start, table_end, self.max_distance, self.num_buckets, device=q.device
        )
        dtype = q.dtype if q.is_cuda else compute_dtype(q.dtype)  # GPU kernels use the precision of their inputs
        return SchemeTerms(
            q=q,
            k=k,
            key_table=self._table(self.key_projection, rows, dtype),
            query_table=self._table(self.query_projection, rows, dtype),
            table_start=table_start,
            is_full_table=True,
        )

    def _table(self, projection: nn.Linear | None, rows: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the projected embeddings in these rows, (heads, rows, head_dim)."""
        if projection is None:
            return None
        table = project(projection, self.embeddings, dtype)
        by_head: Tensor = embedding(rows, table).unflatten(-1, (self.heads, self.head_dim))  # fast backward pass
        return by_head.transpose(0, 1)

    def rows(self, differences: Tensor) -> Tensor:
        """Return the row of the embeddings for each difference i − j."""
        return disentangled_rows(differences, self.max_distance, self.num_buckets)

    def extra_repr(self) -> str:
        terms = [name for name, x in (("c2p", self.key_projection), ("p2c", self.query_projection)) if x is not None]
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, max_distance={self.max_distance}, "
            f"num_buckets={self.num_buckets}, dim={self.dim}, terms={terms}"
        )


def disentangled_rows_of_range(
    start: int, stop: int, max_distance: int, num_buckets: int | None, device: torch.device
) -> Tensor:
    """Return the row of the embeddings for each relative position j − i of a range; see `Disentangled`."""
    return disentangled_rows(-torch.arange(start, stop, device=device), max_distance, num_buckets)


def disentangled_rows(differences: Tensor, max_distance: int, num_buckets: int | None) -> Tensor:
    """Return the row of the embeddings for each difference i − j; see `Disentangled` for the arguments."""
    if num_buckets is None:
        return differences.clamp(-max_distance, max_distance - 1) + max_distance
    middle = num_buckets // 2
    # float64 and the small number keep distances at the end of a bucket from being rounded into the next one.
    dtype = torch.float32 if differences.device.type == "mps" else torch.float64
    ratios = differences.abs().clamp(min=middle).to(dtype) / middle
    steps = ratios.log() * ((middle - 1) / math.log((max_distance - 1) / middle))
    logarithmic = differences.sign() * (middle + (steps - 1e-6).ceil().long())
    buckets = torch.where(differences.abs() <= middle, differences, logarithmic)
    return buckets.clamp(-num_buckets, num_buckets - 1) + num_buckets
