"""A target of the user's own for each token, such as what a person has highlighted.

    L = mean over guided heads of KL( target ‖ what tokens receive ), both scaled to sum 1 over real tokens

It reads only what tokens receive. A text without any highlighted token is left out.
"""

from typing import Unpack

import torch
from torch import Tensor

from headwise.guides.guide import ForwardRecord, Guide, Options, Weight, full


class Rationale(Guide):
    """Push what tokens receive towards a target, which the model is given as one more input.

    Args:
        weight, share, layers, heads, schedule, name: see `Guide`.
        key: under which name the batch holds the target, (B, N), 0 or more; it is kept from the model itself.

    Example:
        >>> import headwise as hw
        >>> hw.guides.Rationale(0.1, key="highlights", layers=[-1])
        Rationale(weight=0.1, schedule='constant')
    """

    def __init__(self, weight: Weight = 1.0, *, key: str = "rationale", **options: Unpack[Options]) -> None:
        super().__init__(weight, **options)
        self.key = key
        self.keys = (key,)

    def term(self, observed: ForwardRecord) -> Tensor:
        target = observed.inputs.get(self.key)
        if not isinstance(target, Tensor):
            raise ValueError(f"{self.name} needs {self.key!r} in every batch: a target for each token, (batch, length)")
        real = observed.real
        if target.shape != real.shape:
            raise ValueError(f"{self.key} must be {tuple(real.shape)}, as input_ids; got {tuple(target.shape)}")
        target = target.float().clamp(min=0.0) * real
        total = target.sum(dim=1, keepdim=True)
        target = target / total.clamp(min=1e-9)
        has_target = (total[:, 0] > 0).float()
        terms = []
        for layer in observed.layers:
            received = full(self.of_heads(layer.received)) * real[:, None]
            share = received / received.sum(dim=-1, keepdim=True).clamp(min=1e-9)
            apart = torch.special.xlogy(target, target)[:, None] - torch.special.xlogy(target[:, None], share + 1e-9)
            terms.append((apart.sum(dim=-1).mean(dim=1) * has_target).sum() / has_target.sum().clamp(min=1.0))
        return torch.stack(terms).mean()
