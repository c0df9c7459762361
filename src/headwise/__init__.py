"""Self-attention that knows how far apart tokens are, and that can be told what to look at."""

from headwise.attention import (
    Choice,
    DecoderLayer,
    DistanceAware,
    EncoderLayer,
    MultiheadAttention,
    Plain,
    RelativePositions,
    Scheme,
    Tener,
    TransformerXL,
    attend,
    explain,
)

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "DecoderLayer",
    "DistanceAware",
    "EncoderLayer",
    "MultiheadAttention",
    "Plain",
    "RelativePositions",
    "Scheme",
    "Tener",
    "TransformerXL",
    "attend",
    "explain",
]
