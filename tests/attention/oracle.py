"""The papers' equations for one pair (i, j) at a time, in float64: the oracle of all backends.

It uses only the parameters of the schemes, and no other code of headwise. i is the position of a query (offset
included), j that of a key.
"""

import math
from functools import cache

import torch
from torch import Tensor

from headwise import Alibi, Disentangled, DistanceAware, RelativePositions, Rotary, Scheme, T5Bias, Tener, TransformerXL


@cache
def sinusoid(position: int, dim: int) -> Tensor:
    """Return r of Transformer-XL and TENER: sines, then cosines, of the position times 10000^(−2m/dim)."""
    angles = [position / 10000 ** (2 * m / dim) for m in range(dim // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def coefficient(scheme: DistanceAware, h: int, distance: int) -> Tensor:
    """Return f of the distance-aware paper: eq. 5 or a mapping of section 4.3."""
    x = scheme.w[h] * distance
    if scheme.mapping == "learnable-sigmoid":
        assert scheme.v is not None
        return (1 + torch.exp(scheme.v[h])) / (1 + torch.exp(scheme.v[h] - x))
    if scheme.mapping == "clip":
        return torch.minimum(x, torch.tensor(scheme.threshold, dtype=torch.float64))
    if scheme.mapping == "linear":
        assert scheme.slope is not None
        assert scheme.intercept is not None
        return scheme.slope[h] * x + scheme.intercept[h]
    if scheme.mapping == "exponent":
        return torch.exp(x)
    return 1 / (1 + torch.exp(-x))


def table_row(table: Tensor, h: int, i: int, j: int, k: int) -> Tensor:
    """Return w_clip(j−i, k) of Shaw et al.; all heads share a table without heads."""
    return table[h if len(table) > 1 else 0, max(-k, min(k, j - i)) + k]


def rotated(x: Tensor, position: int, base: float) -> Tensor:
    """Return R_p x of RoFormer, with pairs of columns (m, m + d/2)."""
    half = len(x) // 2
    result = [x[0]] * len(x)
    for m in range(half):
        angle = position * base ** (-2 * m / len(x))
        result[m] = x[m] * math.cos(angle) - x[m + half] * math.sin(angle)
        result[m + half] = x[m + half] * math.cos(angle) + x[m] * math.sin(angle)
    return torch.stack(result)


def t5_bucket(scheme: T5Bias, r: int) -> int:
    """Return the bucket of relative position r = j − i: T5's encoder has buckets for both directions."""
    count = scheme.num_buckets // 2 if scheme.bidirectional else scheme.num_buckets
    first = count if scheme.bidirectional and r > 0 else 0
    distance = abs(r) if scheme.bidirectional else max(-r, 0)
    num_exact = count // 2
    if distance < num_exact:
        return first + distance
    logarithm = math.log(distance / num_exact) / math.log(scheme.max_distance / num_exact)
    return first + min(count - 1, num_exact + math.floor(logarithm * (count - num_exact) + 1e-9))


def deberta_row(scheme: Disentangled, difference: int) -> int:
    """Return δ(i, j) of DeBERTa, or the row of DeBERTa-v2's bucket, for the difference i − j."""
    size = scheme.num_buckets or scheme.max_distance
    middle = size // 2
    if scheme.num_buckets and abs(difference) > middle:
        logarithm = math.log(abs(difference) / middle) / math.log((scheme.max_distance - 1) / middle)
        bucket = middle + math.ceil(logarithm * (middle - 1) - 1e-9)
        difference = bucket if difference > 0 else -bucket
    return max(-size, min(size - 1, difference)) + size


def score(scheme: Scheme, h: int, q: Tensor, k: Tensor, i: int, j: int, scale: float | None) -> Tensor:
    """Return the score of one pair."""
    c = 1 / math.sqrt(len(q)) if scale is None else scale
    if isinstance(scheme, DistanceAware):
        f = coefficient(scheme, h, abs(i - j))
        if scheme.adjust == "early-multiply":
            return (torch.relu(q @ k) if scheme.rectify else q @ k) * f * c
        return q @ k * c + f if scheme.adjust == "early-add" else q @ k * c
    if isinstance(scheme, Alibi):
        return q @ k * c + scheme.slopes[h] * abs(i - j)
    if isinstance(scheme, Disentangled):
        embedding, total, num_terms = scheme.embeddings[deberta_row(scheme, i - j)], q @ k, 1
        for projection, x in ((scheme.key_projection, q), (scheme.query_projection, k)):
            if projection is not None:
                columns = slice(h * scheme.head_dim, (h + 1) * scheme.head_dim)
                row = projection.weight[columns] @ embedding
                total = total + x @ (row if projection.bias is None else row + projection.bias[columns])
                num_terms += 1
        return total * (1 / math.sqrt(num_terms * len(q)) if scale is None else scale)
    if isinstance(scheme, T5Bias):
        return q @ k * c + scheme.bias[h, t5_bucket(scheme, j - i)]
    if isinstance(scheme, Rotary):
        return rotated(q, i, scheme.base) @ rotated(k, j, scheme.base) * c
    if isinstance(scheme, RelativePositions):
        return q @ (k if scheme.key_table is None else k + table_row(scheme.key_table, h, i, j, scheme.k)) * c
    if isinstance(scheme, TransformerXL):
        weight = scheme.projection.weight.view(scheme.heads, scheme.head_dim, scheme.dim)[h]
        return ((q + scheme.u[h]) @ k + (q + scheme.v[h]) @ (weight @ sinusoid(i - j, scheme.dim))) * c
    if isinstance(scheme, Tener):
        c, d = 1.0 if scale is None else scale, scheme.head_dim
        content = (q + scheme.u[h]) @ k
        if scheme.released:
            return (content + (q + scheme.v[h]) @ sinusoid(j - i, d) + k @ sinusoid(i - j, d)) * c
        return (content + (q + scheme.v[h]) @ sinusoid(i - j, d)) * c
    return q @ k * c


def oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    allowed: Tensor,
    position_bias: Tensor | None = None,
    offset: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    real_queries: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return output (B, H, N, d), received (B, H, M), weight_norms and lse (B, H, N), and weights (B, H, N, M).

    Args:
        q: queries.
        k: keys.
        v: values.
        scheme: position scheme.
        allowed: combined mask, (B, H, N, M).
        position_bias: see `attend`.
        offset: see `attend`.
        scale: see `attend`.
        softcap: see `attend`.
        sinks: see `attend`.
        real_queries: queries that are not padding, (B, N). Padding queries have no sink.
    """
    batch, heads, n, _ = q.shape
    group_size = heads // k.shape[1]
    m, width = v.shape[2:]
    outputs, weights, lse = [], [], []
    for b in range(batch):
        for h in range(heads):
            g = h // group_size
            for i in range(n):
                keys = [j for j in range(m) if allowed[b, h, i, j]]
                scores = {j: score(scheme, h, q[b, h, i], k[b, g, j], offset + i, j, scale) for j in keys}
                if softcap is not None:
                    scores = {j: softcap * torch.tanh(s / softcap) for j, s in scores.items()}
                if position_bias is not None:
                    scores = {j: s + position_bias.expand(batch, heads, n, m)[b, h, i, j] for j, s in scores.items()}
                total = sum((torch.exp(s) for s in scores.values()), start=torch.zeros((), dtype=torch.float64))
                has_sink = sinks is not None and (real_queries is None or bool(real_queries[b, i]))
                if has_sink and sinks is not None:
                    total = total + torch.exp(sinks[h])
                output = torch.zeros(width, dtype=torch.float64)
                row = [torch.zeros((), dtype=torch.float64)] * m
                for j in keys:
                    p = torch.exp(scores[j]) / total
                    value = v[b, g, j]
                    if isinstance(scheme, DistanceAware) and scheme.adjust.startswith("late"):
                        f = coefficient(scheme, h, abs(offset + i - j))
                        p = p * f if scheme.adjust == "late-multiply" else p + f
                    if isinstance(scheme, RelativePositions) and scheme.value_table is not None:
                        value = value + table_row(scheme.value_table, h, offset + i, j, scheme.k)
                    output = output + p * value
                    row[j] = p
                outputs.append(output)
                lse.append(torch.log(total) if keys or has_sink else torch.tensor(-torch.inf, dtype=torch.float64))
                weights.append(torch.stack(row))
    weights_BHNM = torch.stack(weights).view(batch, heads, n, m)
    output = torch.stack(outputs).view(batch, heads, n, width)
    lse_BHN = torch.stack(lse).view(batch, heads, n)
    return output, weights_BHNM.sum(dim=2), weights_BHNM.square().sum(dim=3), lse_BHN, weights_BHNM
