"""The learning rate of position schemes in models of our own."""

from typing import Any, cast

from torch import nn
from transformers import Trainer

from headwise.integrations import add_scheme_group, all_scheme_parameters


class SchemeRateTrainer(Trainer):
    """A Trainer with a separate learning rate for the parameters of position schemes: w and v, tables, biases.

    Args:
        scheme_learning_rate: the learning rate; by default that of the model.
        args, kwargs: as for `Trainer`.
    """

    def __init__(self, *args: Any, scheme_learning_rate: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scheme_learning_rate = scheme_learning_rate

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.scheme_learning_rate is not None:
            add_scheme_group(optimizer, all_scheme_parameters(cast(nn.Module, self.model)), self.scheme_learning_rate)
        return optimizer
