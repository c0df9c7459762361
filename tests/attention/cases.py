"""Schemes to test, by name."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from headwise import (
    Alibi,
    Disentangled,
    DistanceAware,
    Plain,
    RelativePositions,
    Rotary,
    Scheme,
    T5Bias,
    Tener,
    TransformerXL,
)
from headwise.attention.schemes.distance_aware import Mapping
from headwise.attention.types import Adjust

SchemeFactory = Callable[[int, int], Scheme]

MAPPINGS: tuple[Mapping, ...] = ("learnable-sigmoid", "clip", "linear", "exponent", "sigmoid")
ADJUSTS: tuple[Adjust, ...] = ("early-multiply", "early-add", "late-multiply", "late-add")


def distance_aware(mapping: Mapping, adjust: Adjust, rectify: bool = True) -> SchemeFactory:
    return lambda heads, _: DistanceAware(
        heads, mapping=mapping, adjust=adjust, rectify=rectify, w_std=0.4, v_std=0.7, threshold=0.8
    )


#: The schemes with typical options.
SCHEMES: dict[str, SchemeFactory] = {
    "plain": lambda heads, dim: Plain(),
    "distance-aware": distance_aware("learnable-sigmoid", "early-multiply"),
    "rpr": lambda heads, dim: RelativePositions(heads, dim, k=2),
    "transformer-xl": lambda heads, dim: TransformerXL(heads, dim),
    "tener": lambda heads, dim: Tener(heads, dim),
    "t5-bias": lambda heads, dim: T5Bias(heads, num_buckets=8, max_distance=6),
    "disentangled": lambda heads, dim: Disentangled(heads, dim, max_distance=3),
    "alibi": lambda heads, dim: Alibi(heads, learned=True),
    "rotary": lambda heads, dim: Rotary(dim),
}

#: All variants of the schemes.
VARIANTS: dict[str, SchemeFactory] = SCHEMES | {
    "rpr-per-head": lambda heads, dim: RelativePositions(heads, dim, k=3, per_head=True),
    "rpr-k0": lambda heads, dim: RelativePositions(heads, dim, k=0),
    "rpr-keys": lambda heads, dim: RelativePositions(heads, dim, k=1, values=False),
    "rpr-values": lambda heads, dim: RelativePositions(heads, dim, k=1, keys=False),
    "rpr-none": lambda heads, dim: RelativePositions(heads, dim, k=1, keys=False, values=False),
    "transformer-xl-narrow": lambda heads, dim: TransformerXL(heads, dim, dim=2),
    "t5-bias-causal": lambda heads, dim: T5Bias(heads, num_buckets=3, max_distance=2, bidirectional=False),
    "disentangled-buckets": lambda heads, dim: Disentangled(heads, dim, max_distance=5, num_buckets=4, dim=3),
    "disentangled-c2p": lambda heads, dim: Disentangled(heads, dim, max_distance=2, p2c=False),
    "disentangled-p2c": lambda heads, dim: Disentangled(heads, dim, max_distance=2, c2p=False),
    "tener-released": lambda heads, dim: Tener(heads, dim, released=True),
    "da-unrectified": distance_aware("learnable-sigmoid", "early-multiply", rectify=False),
    **{
        f"da-{m}-{a}": distance_aware(m, a)
        for m, a in product(MAPPINGS, ADJUSTS)
        if (m, a) != (MAPPINGS[0], ADJUSTS[0])
    },
}

#: Options of `attend` that request all results.
RETURN_ALL: dict[str, Any] = {f"return_{name}": True for name in ("received", "weight_norms", "lse", "weights")}


def make_scheme(name: str, heads: int, head_dim: int, *, dtype: torch.dtype = torch.float64) -> Scheme:
    """Create a scheme whose parameters all differ from 0, so that every term matters."""
    scheme = VARIANTS[name](heads, head_dim).to(dtype)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return scheme
