"""A study looks on while a run trains."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback


class Watcher(TrainerCallback):
    """Hands on the dev figure of each epoch.

    Args:
        judge: takes the epoch's number and the figure.
    """

    def __init__(self, judge: Callable[[int, float], None]) -> None:
        self.judge = judge

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **others: Any
    ) -> None:
        name = args.metric_for_best_model
        if name is not None and metrics is not None and name in metrics:
            self.judge(round(state.epoch or 0), float(metrics[name]))
