"""What `fuse_attention` says about a model: the fused layers and the expected gain."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headwise.integrations.fusion.attention import ALWAYS_FUSED, MaxPairs
from headwise.integrations.fusion.family import Family, families
from headwise.integrations.model_utils import pretrained_modules, unwrap_model

#: Lengths for which reports estimate memory.
LENGTHS = (512, 2048, 8192)


@dataclass(frozen=True)
class FusedLayers:
    """The fused layers of one family in a model.

    Attributes:
        family: the name of the family.
        names: the names of the layers in the model, in order.
        heads: the number of heads of a layer; None if the configuration does not have it.
        num_maps: how many N × N maps per head the model's own layer keeps for the backward pass.
        max_pairs: up to how many pairs of positions a batch is computed with whole maps, on a GPU.
    """

    family: str
    names: tuple[str, ...]
    heads: int | None
    num_maps: int
    max_pairs: MaxPairs

    def saved_bytes(self, length: int, itemsize: int) -> int:
        """Return the estimated memory of the maps that training on one input of this length does not store."""
        return len(self.names) * self.num_maps * (self.heads or 0) * length**2 * itemsize


@dataclass(frozen=True)
class FusionReport:
    """The fused attention layers of a model and the expected gain; `str` gives the text.

    Attributes:
        model: the class of the model.
        layers: the fused layers, by family.
        dtype: the dtype of the model.
        device: the device of the model.
    """

    model: str
    layers: tuple[FusedLayers, ...]
    dtype: torch.dtype
    device: torch.device

    def saved_bytes(self, length: int) -> int:
        """Return the estimated memory of the maps that training on one input of this length does not store."""
        return sum(layers.saved_bytes(length, self.dtype.itemsize) for layers in self.layers)

    def __str__(self) -> str:
        if not self.layers:
            return f"{self.model} has no fused attention layers"
        lines = [
            f"{self.model}: fused {len(layers.names)} attention layers of {layers.family}: "
            f"{', '.join(shorten_names(layers.names))}"
            for layers in self.layers
        ]
        if all(layers.heads for layers in self.layers):
            estimates = ", ".join(f"{_gibibytes(self.saved_bytes(length))} at {length:,}" for length in LENGTHS)
            lines.append(
                "expected gain: attention maps are not stored. In training, the maps of one input take about "
                f"{estimates} positions ({str(self.dtype).removeprefix('torch.')})"
            )
        if self.device.type == "cuda":
            lines.append("attention runs in fused GPU kernels; measure your lengths with headwise fuse MODEL --bench")
            limits = {name: max(getattr(x.max_pairs, name) for x in self.layers) for name in MaxPairs._fields}
            if any(limits.values()):
                shapes = " and ".join(f"{name} up to {limit:,}" for name, limit in limits.items() if limit)
                lines.append(
                    f"short batches, in {shapes} pairs (batch size × length²), are computed with whole maps, "
                    "which is faster there; fuse_attention(model, always=True) fuses them, too, and saves memory"
                )
        else:
            lines.append("on a CPU, only memory is gained; attention takes about as long as before")
        return "\n".join(lines)


def fusion_report(model: nn.Module) -> FusionReport:
    """Return which attention layers of a model are fused, and the expected gain.

    Args:
        model: a `PreTrainedModel`, or a module that contains one.

    Example:
        >>> import headwise as hw
        >>> from transformers import T5Config, T5EncoderModel
        >>> tiny = T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        >>> model = hw.fuse_attention(T5EncoderModel(tiny), verbose=False)
        >>> hw.fusion_report(model).layers[0].names
        ('encoder.block.0.layer.0.SelfAttention', 'encoder.block.1.layer.0.SelfAttention')
    """
    inner = unwrap_model(model)
    found = [_fused_layers(inner, family) for family in families().values()]
    parameter = next(inner.parameters())
    return FusionReport(
        type(inner).__name__, tuple(layers for layers in found if layers.names), parameter.dtype, parameter.device
    )


def _fused_layers(model: PreTrainedModel, family: Family) -> FusedLayers:
    fused = set(family.layers.values())
    names = tuple(name for name, module in model.named_modules() if type(module) in fused)
    heads = None
    for module in pretrained_modules(model):  # the innermost configuration is that of the layers
        if any(type(layer) in fused for layer in module.modules()):
            config: Any = module.config
            heads = getattr(config, "num_attention_heads", None) or heads
    layers = [module for module in model.modules() if type(module) in fused]
    is_limited = any(ALWAYS_FUSED not in layer.__dict__ for layer in layers)
    max_pairs = getattr(layers[0], "max_pairs", MaxPairs()) if is_limited else MaxPairs()
    return FusedLayers(family.name, names, heads if isinstance(heads, int) else None, family.num_maps, max_pairs)


def shorten_names(names: tuple[str, ...]) -> list[str]:
    """Return names with numbers, such as layer.0.attention … layer.11.attention, as layer.{0…11}.attention."""
    groups: dict[str, list[int]] = {}
    for name in names:
        match = re.search(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", name)
        pattern, number = (f"{name[: match.start()]}#{name[match.end() :]}", int(match[0])) if match else (name, 0)
        groups.setdefault(pattern, []).append(number)
    return [
        pattern.replace("#", f"{{{numbers[0]}…{numbers[-1]}}}" if len(numbers) > 1 else str(numbers[0]), 1)
        for pattern, numbers in groups.items()
    ]


def _gibibytes(num_bytes: int) -> str:
    if num_bytes < 2**20:
        return f"{num_bytes / 2**10:.0f} KiB"
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
