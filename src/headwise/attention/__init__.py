"""Attention operator, position schemes and Transformer layers, independent of models, data and training."""

from headwise.attention.attend import BackendChoice, attend, explain
from headwise.attention.layers import DecoderLayer, EncoderLayer
from headwise.attention.multihead import MultiheadAttention
from headwise.attention.schemes import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL

__all__ = [
    "BackendChoice",
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
