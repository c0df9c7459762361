"""Names of position schemes and extensions, for options of models and commands. This module does not import torch."""

from collections.abc import Collection
from typing import Literal, get_args

SchemeName = Literal[
    "plain", "rpr", "transformer-xl", "tener", "distance-aware", "alibi", "rotary", "t5-bias", "disentangled"
]

#: Names of schemes of models, where `none` is plain attention without positions in the input.
ModelSchemeName = Literal["none", SchemeName]

#: How the positions of a longer input are computed from those of a pretrained model (`headwise.extend_positions`).
PositionExtension = Literal["tile", "interpolate", "repeat-last", "yarn"]

#: The default learning rate of schemes that `headwise.retrofit` added is that of the model times this factor.
RETROFIT_RATE_FACTOR = 10

#: Schemes without trainable parameters; the slopes of alibi can be trained with the option `learned=true`.
FIXED_SCHEMES = ("none", "plain", "alibi", "rotary")


def is_trainable_scheme(name: str | None, scheme_options: Collection[str] = ()) -> bool:
    """Return whether a name is that of a scheme with trainable parameters.

    >>> is_trainable_scheme("rpr"), is_trainable_scheme("alibi"), is_trainable_scheme("alibi", ["learned=true"])
    (True, False, True)
    """
    if name == "alibi" and "learned=true" in scheme_options:
        return True
    return name in get_args(ModelSchemeName) and name not in FIXED_SCHEMES
