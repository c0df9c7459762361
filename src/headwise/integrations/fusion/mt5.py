"""mT5 with fused attention, which is that of T5."""

from transformers.models.mt5.modeling_mt5 import MT5Attention

from headwise.integrations.fusion.family import Family
from headwise.integrations.fusion.t5 import T5BiasFromFirstLayer


class FusedMT5Attention(T5BiasFromFirstLayer, MT5Attention):
    """Self-attention and cross-attention of mT5."""


FAMILY = Family(name="mT5", layers={MT5Attention: FusedMT5Attention}, uses_mask_interface=True, num_maps=1)
