"""Families of models with relative positions, and the classes that compute their attention with `attend`.

A fused class is a subclass of the model's own class without `__init__`. A layer is fused by assigning its `__class__`:
parameters, buffers, submodules, hooks and names stay as they are, and assigning the original class undoes it.

To add a family, write one file with a fused class and its `FAMILY`, add a line to `FAMILY_MODULES`, and a tiny
configuration to `tests/integrations/fusion/cases.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from torch import nn

#: The modules of the families, by name. A family whose classes the installed transformers does not have is left out.
FAMILY_MODULES = {
    "T5": "t5",
    "mT5": "mt5",
    "UMT5": "umt5",
    "MPNet": "mpnet",
    "LayoutLMv3": "layoutlmv3",
    "DeBERTa": "deberta",
    "DeBERTa-v2": "deberta_v2",
    "XLNet": "xlnet",
    "Wav2Vec2-BERT": "wav2vec2_bert",
    "Wav2Vec2-Conformer": "wav2vec2_conformer",
    "Parakeet": "parakeet",
    "SeamlessM4T": "seamless_m4t",
    "SeamlessM4T v2": "seamless_m4t_v2",
    "SEW-D": "sew_d",
    "Nemotron-ASR-streaming": "nemotron_asr_streaming",
    "FastSpeech2-Conformer": "fastspeech2_conformer",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of models.

    Attributes:
        name: the name that reports show.
        layers: the fused class of each class that computes attention.
        containers: the fused class of each class that builds masks or positions for these layers.
        uses_mask_interface: whether the model builds masks with transformers' `AttentionMaskInterface`. Its attention
            implementation is then set to headwise's, whose masks of padding take no N × N memory.
        read_directly: names of submodules whose weights the model's own code reads without calling them, so that
            accelerate's hooks do not load them. The fused classes load them.
        num_maps: how many N × N maps per head the model's own layer keeps for the backward pass.
        build_example: returns a batch for the part of a model that has the layers; by default, random texts.
        why_unsupported: returns why layers with this configuration cannot be fused; an empty text if they can.
    """

    name: str
    layers: Mapping[type[nn.Module], type[nn.Module]]
    containers: Mapping[type[nn.Module], type[nn.Module]] = field(default_factory=dict)
    uses_mask_interface: bool = False
    read_directly: tuple[str, ...] = ()
    num_maps: int
    build_example: Callable[[Any], dict[str, Any]] | None = None
    why_unsupported: Callable[[Any], str] | None = None

    @property
    def replacements(self) -> dict[type[nn.Module], type[nn.Module]]:
        """The fused class of each class."""
        return {**self.layers, **self.containers}


@cache
def families() -> dict[str, Family]:
    """Return the families that the installed transformers has, by name."""
    found = {}
    for name, module in FAMILY_MODULES.items():
        try:
            found[name] = import_module(f"headwise.integrations.fusion.{module}").FAMILY
        except ImportError as error:
            if not (error.name or "").startswith("transformers"):
                raise
    return found
