"""Names of position schemes and extensions, for options of models and commands. This module does not import torch."""

from typing import Literal

SchemeName = Literal[
    "plain", "rpr", "transformer-xl", "tener", "distance-aware", "alibi", "rotary", "t5-bias", "disentangled"
]

#: Names of schemes of models, where `none` is plain attention without positions in the input.
ModelSchemeName = Literal["none", SchemeName]

#: How the positions of a longer input are computed from those of a pretrained model (`headwise.extend_positions`).
PositionExtension = Literal["tile", "interpolate", "repeat-last", "yarn"]
