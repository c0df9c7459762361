"""Names of position schemes, for options of models and of the command line. This module does not import torch."""

from typing import Literal

SchemeName = Literal[
    "plain", "rpr", "transformer-xl", "tener", "distance-aware", "alibi", "rotary", "t5-bias", "disentangled"
]

#: Names of schemes of models, where `none` is plain attention without positions in the input.
ModelSchemeName = Literal["none", SchemeName]
