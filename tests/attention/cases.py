"""Schemes by name, one of each kind that a test should meet."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from headwise import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL
from headwise.attention.schemes.distance_aware import Mapping
from headwise.attention.types import Adjust

Make = Callable[[int, int], Scheme]

MAPPINGS: tuple[Mapping, ...] = ("learnable-sigmoid", "clip", "linear", "exponent", "sigmoid")
ADJUSTS: tuple[Adjust, ...] = ("early-multiply", "early-add", "late-multiply", "late-add")


def distance_aware(mapping: Mapping, adjust: Adjust, rectify: bool = True) -> Make:
    return lambda heads, _: DistanceAware(
        heads, mapping=mapping, adjust=adjust, rectify=rectify, w_spread=0.4, v_spread=0.7, threshold=0.8
    )


#: The five schemes as a user would make them.
FIVE: dict[str, Make] = {
    "plain": lambda heads, dim: Plain(),
    "distance-aware": distance_aware("learnable-sigmoid", "early-multiply"),
    "rpr": lambda heads, dim: RelativePositions(heads, dim, k=2),
    "transformer-xl": lambda heads, dim: TransformerXL(heads, dim),
    "tener": lambda heads, dim: Tener(heads, dim),
}

#: Every variant of them.
ALL: dict[str, Make] = FIVE | {
    "rpr-per-head": lambda heads, dim: RelativePositions(heads, dim, k=3, per_head=True),
    "rpr-k0": lambda heads, dim: RelativePositions(heads, dim, k=0),
    "rpr-keys": lambda heads, dim: RelativePositions(heads, dim, k=1, values=False),
    "rpr-values": lambda heads, dim: RelativePositions(heads, dim, k=1, keys=False),
    "rpr-none": lambda heads, dim: RelativePositions(heads, dim, k=1, keys=False, values=False),
    "transformer-xl-narrow": lambda heads, dim: TransformerXL(heads, dim, dim=2),
    "tener-released": lambda heads, dim: Tener(heads, dim, released=True),
    "da-unrectified": distance_aware("learnable-sigmoid", "early-multiply", rectify=False),
    **{
        f"da-{m}-{a}": distance_aware(m, a)
        for m, a in product(MAPPINGS, ADJUSTS)
        if (m, a) != (MAPPINGS[0], ADJUSTS[0])
    },
}

#: All that `attend` can return besides the output.
EVERYTHING: dict[str, Any] = {f"return_{what}": True for what in ("received", "weight_norms", "lse", "weights")}


def make(name: str, heads: int, head_dim: int, *, dtype: torch.dtype = torch.float64) -> Scheme:
    """A scheme with every parameter away from 0, so that no term hides."""
    scheme = ALL[name](heads, head_dim).to(dtype)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return scheme
