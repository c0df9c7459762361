"""Disagreement between the heads of a layer."""

from typing import Literal, Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, GuideOptions, Weight, upcast
from headwise.integrations import LayerRecord


class Disagreement(Guide):
    """Make the heads of a layer differ in their outputs, attention weights or values.

        output:   cosine of the outputs of two heads
        position: sum of the products of the weights of two heads
        subspace: cosine of the values of two heads

    each as a mean over all pairs of heads of a layer.

    Reference:
        Li et al. 2018, Multi-Head Attention with Disagreement Regularization, eq. 5–7. The paper maximizes the
        negatives of these terms.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        component: `output`, `position` or `subspace`.

    Advice:
        `position` reads the attention maps: N × N memory per head. The other two add almost no cost.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Disagreement(0.1, component="output")
        Disagreement(weight=0.1, schedule='constant')
    """

    def __init__(
        self,
        weight: Weight = 1.0,
        *,
        component: Literal["output", "position", "subspace"] = "output",
        **options: Unpack[GuideOptions],
    ) -> None:
        super().__init__(weight, **options)
        if component not in ("output", "position", "subspace"):
            raise ValueError(f"component must be one of output, position, subspace; got {component!r}")
        self.component = component
        self.required_fields = frozenset({"weights" if component == "position" else "states"})

    def term(self, record: ForwardRecord) -> Tensor:
        return torch.stack([self._agreement(layer) for layer in record.layers]).mean()

    def _agreement(self, layer: LayerRecord) -> Tensor:
        real = layer.real.float()
        if self.component == "position":
            assert layer.weights is not None
            weights = upcast(self.select_heads(layer.weights)) * real[:, None, :, None]
            products = torch.einsum("bhij,bgij->bhg", weights, weights)
        else:
            states = upcast(self.select_heads(layer.output if self.component == "output" else layer.v))
            unit_vectors = torch.nn.functional.normalize(states, dim=-1) * real[:, None, :, None]
            products = torch.einsum("bhid,bgid->bhg", unit_vectors, unit_vectors)
        return (products / real.sum(dim=1).clamp(min=1)[:, None, None]).mean()
