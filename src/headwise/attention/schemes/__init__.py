"""Position schemes, one file each."""

from headwise.attention.schemes.distance_aware import DistanceAware
from headwise.attention.schemes.plain import Plain
from headwise.attention.schemes.relative_positions import RelativePositions
from headwise.attention.schemes.scheme import Scheme
from headwise.attention.schemes.tener import Tener
from headwise.attention.schemes.transformer_xl import TransformerXL

__all__ = ["DistanceAware", "Plain", "RelativePositions", "Scheme", "Tener", "TransformerXL"]
