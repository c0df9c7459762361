"""Schemes, options and formulas for the tests of the Triton kernels.

Legend: B batch, H heads, N queries, M keys.
"""

from typing import Any

import torch
from torch import Tensor

from headwise import Alibi, Disentangled, DistanceAware, Plain, RelativePositions, Scheme, T5Bias, Tener, TransformerXL
from tests.attention.oracle import deberta_row, sinusoid, t5_bucket
from tests.short_form import choose_size

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
LENGTHS = (
    (1100, 777) if GPU else choose_size(short=(40, 50), long=(40, 70))
)  # N and M: several tiles, the last incomplete
HEADS, WIDTH = 2, 32

torch.manual_seed(0)
SCHEMES: dict[str, Scheme] = {
    "plain": Plain(),
    "distance-aware": DistanceAware(HEADS, w_std=0.1, v_std=1.0),
    "distance-aware-far": DistanceAware(HEADS, w_std=2.0, v_std=1.0),
    "distance-aware-near": DistanceAware(HEADS, w_init=-1.5, w_std=0.5, v_std=1.0),
    "distance-aware-unrectified": DistanceAware(HEADS, rectify=False, w_std=0.1, v_std=1.0),
    "relative": RelativePositions(HEADS, WIDTH, k=3),
    "relative-wide": RelativePositions(HEADS, WIDTH, k=50, per_head=True, values=False),
    "relative-zero-offset": RelativePositions(HEADS, WIDTH, k=0, keys=False),
    "tener": Tener(HEADS, WIDTH),
    "alibi": Alibi(HEADS, learned=True),
    "t5-bias": T5Bias(HEADS, num_buckets=12, max_distance=24, std=1.0),
    "transformer-xl": TransformerXL(HEADS, WIDTH, dim=20),
    "disentangled": Disentangled(HEADS, WIDTH, max_distance=30, dim=20, std=1.0),
    "disentangled-p2c": Disentangled(HEADS, WIDTH, max_distance=90, num_buckets=12, dim=20, c2p=False, std=1.0),
}
with torch.no_grad():
    for parameter in SCHEMES["transformer-xl"].parameters():
        parameter.mul_(10.0)  # makes positions matter

OPTIONS: dict[str, dict[str, Any]] = {
    "no-options": {},
    "causal": {"causal": True, "offset": 21},
    "padded": {"padded": True},
    "masked": {"mask": True, "position_bias": True},
    "grouped": {"key_heads": 1, "offset": 40, "scale": 0.1},
    "single-tile": {"key_heads": 1, "offset": 7, "padded": True},
    "cu_seqlens": {"cu_seqlens": True, "causal": True},
    "cu_seqlens_k": {"cu_seqlens_k": True, "key_heads": 1},
    "cu_seqlens_k-causal": {"cu_seqlens_k": True, "causal": True, "softcap": 1.2, "sinks": True},
    "output-only": {"returns": (), "padded": True},
    "output-only-causal": {"returns": (), "causal": True, "key_heads": 1, "offset": 10},
    "norms-and-lse": {"returns": ("weight_norms", "lse"), "padded": True},
    "window": {"window": (40, 3), "returns": (), "key_heads": 1},
    "window-causal": {"window": (17, -1), "causal": True, "offset": 35, "padded": True},
    "window-cu_seqlens": {"window": (5, 9), "cu_seqlens": True},
    "softcap-sinks": {"softcap": 1.2, "sinks": True, "padded": True},
    "softcap-sinks-masked": {"softcap": 0.8, "sinks": True, "window": (-1, 20), "mask": True},
    "blocks-masked": {"mask": "blocks", "returns": ("received", "lse")},
    "random-blocks-masked": {"mask": "random-blocks", "returns": ()},
}

#: Options of schemes that share most of their code with another scheme; the others are tested with all options.
FEW_OPTIONS = {
    "t5-bias": (
        "masked", "single-tile", "cu_seqlens", "output-only-causal", "window", "softcap-sinks", "blocks-masked",
    ),
    "disentangled": (
        "masked", "grouped", "single-tile", "cu_seqlens", "output-only-causal", "softcap-sinks-masked",
        "random-blocks-masked",
    ),
    "disentangled-p2c": ("no-options", "window-causal"),
}  # fmt: skip
#: Schemes that differ from another one in the values of parameters only.
SAME_KERNELS = {"distance-aware-near": "distance-aware-far"}
#: A GPU compiles the kernels of each case, which takes seconds, so each scheme has each option in float32 and in one of
#: the half precisions, the same for schemes with the same kernels. Triton's interpreter takes seconds for a case, so
#: there each has one dtype.
CASES = [
    (name, option, dtype)
    for i, name in enumerate(SCHEMES)
    for j, option in enumerate(FEW_OPTIONS.get(name, OPTIONS))
    for dtype in (
        [DTYPES[0], DTYPES[1 + (list(SCHEMES).index(SAME_KERNELS.get(name, name)) + j) % 2]]
        if GPU
        else [DTYPES[(i + j) % 2]]
    )
]


def reference_attention(
    scheme: Scheme,
    mask_BHNM: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Any,
) -> dict[str, Tensor]:
    """Compute the papers' formulas with PyTorch operators, every step in the inputs' precision."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n, m, offset = q.shape[2], k.shape[2], options.get("offset", 0)
    i, j = offset + torch.arange(n, device=q.device)[:, None], torch.arange(m, device=q.device)
    if "query_positions" in options:
        i, offset = options["query_positions"][:, None], m
    scale = options.get("scale") or scheme.scale(q.shape[3])
    if isinstance(scheme, Tener):
        waves = torch.stack([sinusoid(int(t), WIDTH) for t in range(1 - m, offset + n)]).to(q)
        relative = ((q + scheme.v[:, None].to(dtype)) @ waves.mT).gather(-1, (i - j + m - 1).expand(*q.shape[:3], m))
        scores = ((q + scheme.u[:, None].to(dtype)) @ k.mT + relative) * scale
    elif isinstance(scheme, TransformerXL):
        waves = torch.stack([sinusoid(int(t), scheme.dim) for t in range(1 - m, offset + n)]).to(q)
        table = (waves @ scheme.projection.weight.to(dtype).T).unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
        relative = ((q + scheme.v[:, None].to(dtype)) @ table.mT).gather(-1, (i - j + m - 1).expand(*q.shape[:3], m))
        scores = ((q + scheme.u[:, None].to(dtype)) @ k.mT + relative) * scale
    elif isinstance(scheme, Disentangled):
        scores, row_numbers = q @ k.mT, [deberta_row(scheme, t) for t in range(1 - m, offset + n)]
        rows = torch.tensor(row_numbers, device=q.device)[i - j + m - 1]
        if scheme.key_projection is not None:
            scores = scores + (q @ project_embeddings(scheme, scheme.key_projection, dtype).mT).gather(
                -1, rows.expand(*q.shape[:3], m)
            )
        if scheme.query_projection is not None:
            by_row = k @ project_embeddings(scheme, scheme.query_projection, dtype).mT
            scores = scores + by_row.gather(-1, rows.mT.expand(*k.shape[:3], n)).mT
        scores = scores * scale
    else:
        scores = q @ k.mT * scale
    if isinstance(scheme, Alibi):
        scores = scores + scheme.slopes.to(dtype)[:, None, None] * (i - j).abs().to(dtype)
    if isinstance(scheme, T5Bias):
        buckets = torch.tensor([t5_bucket(scheme, r) for r in range(1 - n - offset, m)], device=q.device)
        scores = scores + scheme.bias.to(dtype)[:, buckets[j - i + n + offset - 1]]
    if isinstance(scheme, DistanceAware):
        assert scheme.v is not None
        sharpness = scheme.v.to(dtype)[:, None, None]
        weighted_distance = scheme.w.to(dtype)[:, None, None] * (i - j).abs().to(dtype)
        f = (1 + sharpness.exp()) * torch.sigmoid(weighted_distance - sharpness)
        scores = (scores.relu() if scheme.rectify else scores) * f
    if isinstance(scheme, RelativePositions) and scheme.key_table is not None:
        row = (j - i).clamp(-scheme.k, scheme.k) + scheme.k
        scores = scores + (q @ scheme.key_table.to(dtype).mT * scale).gather(-1, row.expand(*q.shape[:3], m))
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    if bias is not None:
        scores = scores + bias.to(dtype)
    has_key = mask_BHNM.any(dim=-1)
    if sinks is not None:  # a further key, for all queries that are not padding
        sink_scores = sinks.to(dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink_scores], dim=-1)
        is_real = options.get("is_real_query", torch.ones_like(mask_BHNM[..., :1]))
        mask_BHNM = torch.cat([mask_BHNM, is_real], dim=-1)
        has_key = mask_BHNM.any(dim=-1)
    weights = torch.softmax(scores.masked_fill(~mask_BHNM, -torch.inf), dim=-1).nan_to_num(0.0)[..., :m]
    output = weights @ v
    if isinstance(scheme, RelativePositions) and scheme.value_table is not None:
        row = (j - i).clamp(-scheme.k, scheme.k) + scheme.k
        offset_sums = weights.new_zeros(*weights.shape[:3], 2 * scheme.k + 1)
        offset_sums = offset_sums.scatter_add(-1, row.expand_as(weights), weights)
        output = output + offset_sums @ scheme.value_table.to(dtype)
    lse = scores.masked_fill(~mask_BHNM & has_key[..., None], -torch.inf).logsumexp(dim=-1)
    return {
        "output": output,
        "received": weights.sum(dim=2),
        "weight_norms": weights.square().sum(dim=3),
        "lse": lse.masked_fill(~has_key, -torch.inf),
    }


def project_embeddings(scheme: Disentangled, projection: torch.nn.Linear, dtype: torch.dtype) -> Tensor:
    """Return a table of `Disentangled`, (H, rows, width)."""
    table = scheme.embeddings.to(dtype) @ projection.weight.to(dtype).T
    table = table if projection.bias is None else table + projection.bias.to(dtype)
    return table.reshape(-1, HEADS, WIDTH).transpose(0, 1)


def build_options(case: dict[str, Any], batch: int, n: int, m: int) -> tuple[dict[str, Any], Tensor, int]:
    """Return the options of `attend` with their tensors, the equivalent mask, and the number of key heads."""
    options = dict(case)
    key_heads = options.pop("key_heads", HEADS)
    mask_BHNM = torch.ones(batch, HEADS, n, m, dtype=torch.bool, device=DEVICE)
    i, j = torch.arange(n, device=DEVICE), torch.arange(m, device=DEVICE)
    if options.get("cu_seqlens_k"):
        options["cu_seqlens"] = torch.tensor([0, n // 3, n // 3, n // 3 + 1, n, n], device=DEVICE)
        options["cu_seqlens_k"] = torch.tensor([0, m // 3, m // 3 + 4, m // 3 + 9, m - 2, m], device=DEVICE)
        bounds, key_bounds = options["cu_seqlens"], options["cu_seqlens_k"]
        sequence = torch.searchsorted(bounds[1:], i, right=True)
        key_sequence = torch.searchsorted(key_bounds[1:], j, right=True)
        mask_BHNM &= sequence[:, None] == key_sequence
        end = int("causal" in options or "window" in options)  # the last query has the position of the last key
        positions = i + (key_bounds - bounds)[sequence + end]
        options["query_positions"] = positions
    else:
        positions = i + options.get("offset", 0)
    if options.get("window"):
        left, right = options["window"]
        mask_BHNM &= (j >= positions[:, None] - left) | (left < 0)
        mask_BHNM &= (j <= positions[:, None] + right) | (right < 0)
        if "cu_seqlens_k" not in options:
            options.setdefault("offset", 0)
    if options.get("causal"):
        mask_BHNM &= j <= positions[:, None]
    if options.pop("padded", False):
        options["key_padding"] = torch.tensor([m, m // 3], device=DEVICE)
        options["query_padding"] = torch.tensor([n, n // 2], device=DEVICE)
        mask_BHNM &= (j < options["key_padding"][:, None])[:, None, None]
        mask_BHNM &= (i < options["query_padding"][:, None])[:, None, :, None]
    if options.get("cu_seqlens") is True:
        options["cu_seqlens"] = torch.tensor([0, n // 3, n // 3, n // 3 + 1, n], device=DEVICE)
        sequence = torch.searchsorted(options["cu_seqlens"][1:], i, right=True)
        mask_BHNM &= sequence == sequence[:, None]
    if options.get("mask") == "blocks":  # most tiles have no pair
        options["mask"] = ((i[:, None] // 7) % 6 == (j // 7) % 6) | (j == 1)
        mask_BHNM &= options["mask"]
    elif options.get("mask"):
        options["mask"] = torch.rand(2, 1, n, m, device=DEVICE) > 0.3
        if case["mask"] == "random-blocks":
            has_pairs = torch.rand(2, HEADS, -(-n // 32), -(-m // 32), device=DEVICE) > 0.75
            has_pairs = has_pairs.repeat_interleave(32, dim=2).repeat_interleave(32, dim=3)
            options["mask"] = options["mask"] & has_pairs[..., :n, :m]
        options["mask"][:, :, 5] = False  # a query without a key
        options["position_bias"] = torch.randn(1, HEADS, n, m, device=DEVICE)
        mask_BHNM &= options["mask"]
    return options, mask_BHNM, key_heads
