"""Guides towards a target per token that each batch contains."""

from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, GuideOptions, Weight, upcast


class Rationale(Guide):
    """Guide the attention that tokens receive towards a target in the batch, such as tokens highlighted by people.

        L = KL( t ‖ r )

    as a mean over guided heads, where t is the target and r the received attention, both scaled to sum to 1 over real
    tokens. Texts whose target is all zeros are excluded.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        key: the name of the target in the batch, (B, N), 0 or more. It is not passed to the model.

    Advice:
        Pad the target like `input_ids`.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Rationale(0.1, key="highlights", layers=[-1])
        Rationale(weight=0.1, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, key: str = "rationale", **options: Unpack[GuideOptions]) -> None:
        super().__init__(weight, **options)
        self.key = key
        self.input_keys = (key,)

    def term(self, record: ForwardRecord) -> Tensor:
        target = record.inputs.get(self.key)
        if not isinstance(target, Tensor):
            raise ValueError(f"{self.name} needs {self.key!r} in every batch: a target for each token, (batch, length)")
        real = record.real
        if target.shape != real.shape:
            raise ValueError(
                f"{self.key} must have the shape of input_ids, {tuple(real.shape)}; got {tuple(target.shape)}"
            )
        target = target.float().clamp(min=0.0) * real
        total = target.sum(dim=1, keepdim=True)
        target = target / total.clamp(min=1e-9)
        has_target = (total[:, 0] > 0).float()
        terms = []
        for layer in record.layers:
            received = upcast(self.select_heads(layer.received)) * real[:, None]
            fraction = received / received.sum(dim=-1, keepdim=True).clamp(min=1e-9)
            divergence = torch.special.xlogy(target, target)[:, None] - torch.special.xlogy(
                target[:, None], fraction + 1e-9
            )
            terms.append((divergence.sum(dim=-1).mean(dim=1) * has_target).sum() / has_target.sum().clamp(min=1.0))
        return torch.stack(terms).mean()
