"""How well a task is done: one file for each kind of label.

Each has `PRIMARY`, the metric that matters most; `compute`, all metrics; and `row_statistics` and `from_sums`: numbers for each
row, and the primary metric as a function of their sums, which is what makes its bootstrap fast. `clicks` judges click
logs, whose candidates are flat arrays instead of rows.
"""

from typing import Any, Protocol, cast

from headwise.tasks.metrics import classification, clicks, multi_label, ranking, regression, tokens
from headwise.tasks.metrics.bootstrap import standard_error

__all__ = ["Metrics", "get_metrics", "standard_error"]


class Metrics(Protocol):
    PRIMARY: str

    def compute(self, scores: Any, rows: Any) -> dict[str, float]: ...
    def row_statistics(self, scores: Any, rows: Any) -> Any: ...
    def from_sums(self, sums: Any) -> Any: ...


METRICS = {
    "classification": classification,
    "multi-label": multi_label,
    "regression": regression,
    "tokens": tokens,
    "ranking": ranking,
    "clicks": clicks,
}


def get_metrics(label_type: str) -> Metrics:
    """The metrics of a kind of task."""
    return cast(Metrics, METRICS[label_type])
