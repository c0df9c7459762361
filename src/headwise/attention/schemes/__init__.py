"""Position schemes, one file each, and their registry."""

import inspect
from typing import Any

from headwise.attention.schemes.alibi import Alibi
from headwise.attention.schemes.disentangled import Disentangled
from headwise.attention.schemes.distance_aware import DistanceAware
from headwise.attention.schemes.plain import Plain
from headwise.attention.schemes.relative_positions import RelativePositions
from headwise.attention.schemes.rotary import Rotary
from headwise.attention.schemes.scheme import Scheme
from headwise.attention.schemes.t5_bias import T5Bias
from headwise.attention.schemes.tener import Tener
from headwise.attention.schemes.transformer_xl import TransformerXL
from headwise.scheme_names import ModelSchemeName, SchemeName

__all__ = [
    "SCHEMES",
    "Alibi",
    "Disentangled",
    "DistanceAware",
    "ModelSchemeName",
    "Plain",
    "RelativePositions",
    "Rotary",
    "Scheme",
    "SchemeName",
    "T5Bias",
    "Tener",
    "TransformerXL",
    "make_scheme",
    "scheme_options",
]

#: Scheme classes by name.
SCHEMES: dict[str, type[Scheme]] = {
    "plain": Plain,
    "rpr": RelativePositions,
    "transformer-xl": TransformerXL,
    "tener": Tener,
    "distance-aware": DistanceAware,
    "alibi": Alibi,
    "rotary": Rotary,
    "t5-bias": T5Bias,
    "disentangled": Disentangled,
}

#: Arguments of schemes that follow from the model.
SIZES = ("heads", "head_dim")


def make_scheme(scheme: type[Scheme], *, heads: int, head_dim: int, **options: Any) -> Scheme:
    """Create a scheme for a layer, passing only those of `heads` and `head_dim` that its class takes.

    Args:
        scheme: class of the scheme.
        heads: number of query heads.
        head_dim: width of a head.
        options: other arguments of the class; see `scheme_options`.

    Example:
        >>> from headwise.attention.schemes import SCHEMES, make_scheme
        >>> make_scheme(SCHEMES["rpr"], heads=4, head_dim=16, k=8)
        RelativePositions(heads=4, head_dim=16, k=8, tables=['key', 'value'], per_head=False)
        >>> make_scheme(SCHEMES["plain"], heads=4, head_dim=16)
        Plain()
    """
    sizes = {"heads": heads, "head_dim": head_dim}
    return scheme(**{name: sizes[name] for name in _arguments(scheme) if name in SIZES}, **options)


def scheme_options(scheme: type[Scheme]) -> list[str]:
    """Return the names of the arguments of a scheme's class other than `heads` and `head_dim`.

    Example:
        >>> from headwise.attention.schemes import SCHEMES, scheme_options
        >>> scheme_options(SCHEMES["tener"])
        ['released']
    """
    return [name for name in _arguments(scheme) if name not in SIZES]


def _arguments(scheme: type[Scheme]) -> list[str]:
    # Schemes without parameters inherit *args and **kwargs from nn.Module.
    arguments = inspect.signature(scheme).parameters.values()
    return [x.name for x in arguments if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
