"""Attention operator, position schemes and Transformer layers, independent of models, data and training."""

from headwise.attention.attend import BackendChoice, attend, explain
from headwise.attention.layers import DecoderLayer, EncoderLayer, torch_state_dict
from headwise.attention.multihead import MultiheadAttention
from headwise.attention.schemes import (
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
from headwise.attention.types import AttentionOutput, SchemeTerms

__all__ = [
    "Alibi",
    "AttentionOutput",
    "BackendChoice",
    "DecoderLayer",
    "Disentangled",
    "DistanceAware",
    "EncoderLayer",
    "MultiheadAttention",
    "Plain",
    "RelativePositions",
    "Rotary",
    "Scheme",
    "SchemeTerms",
    "T5Bias",
    "Tener",
    "TransformerXL",
    "attend",
    "explain",
    "torch_state_dict",
]
