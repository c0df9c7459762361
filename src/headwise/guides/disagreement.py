"""Disagreement between heads. Li et al. 2018, Multi-Head Attention with Disagreement Regularization, eq. 5–7

    subspace: the cosine of two heads' values;  position: the sum of the product of two heads' weights;
    output:   the cosine of two heads' outputs — each as the mean over all pairs of a layer's heads

The paper maximises their negatives; here they are what is minimised.
"""

from typing import Literal, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, Options, Weight, full
from headwise.integrations import LayerRecord


class Disagreement(Guide):
    """Push a layer's heads apart, by where they look or by what they return.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        on: `output`, heads' outputs; `position`, their weights, which needs whole maps; `subspace`, their values.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Disagreement(0.1, on="output")
        Disagreement(weight=0.1, schedule='constant')
    """

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        on: Literal["output", "position", "subspace"] = "output",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(weight, **options)
        if on not in ("output", "position", "subspace"):
            raise ValueError(f"on must be one of output, position, subspace; got {on!r}")
        self.on = on
        self.needs = frozenset({"weights" if on == "position" else "states"})

    def term(self, observed: ForwardRecord) -> Tensor:
        return torch.stack([self._agreement(layer) for layer in observed.layers]).mean()

    def _agreement(self, layer: LayerRecord) -> Tensor:
        real = layer.real.float()
        if self.on == "position":
            assert layer.weights is not None
            maps = full(self.of_heads(layer.weights)) * real[:, None, :, None]
            pairs = torch.einsum("bhij,bgij->bhg", maps, maps) / real.sum(dim=1).clamp(min=1)[:, None, None]
            return pairs.mean()
        x = layer.output if self.on == "output" else layer.v
        unit = torch.nn.functional.normalize(full(self.of_heads(x)), dim=-1) * real[:, None, :, None]
        pairs = torch.einsum("bhid,bgid->bhg", unit, unit) / real.sum(dim=1).clamp(min=1)[:, None, None]
        return pairs.mean()
