"""Metrics of all label types.

`labels` has the metrics of labeled rows, `clicks` those of click logs, whose candidates are flat arrays instead of
rows, and `bootstrap` estimates standard errors.
"""

from headwise.tasks.metrics import clicks
from headwise.tasks.metrics.bootstrap import standard_error
from headwise.tasks.metrics.labels import METRICS, Metrics

__all__ = ["Metrics", "get_metrics", "primary_metric", "standard_error"]


def get_metrics(label_type: str) -> Metrics:
    """Return the metrics of labeled rows, for all label types except "clicks"."""
    return METRICS[label_type]


def primary_metric(label_type: str) -> str:
    """Return the name of the metric that selects the best epoch and model."""
    others = {"clicks": clicks.PRIMARY, "translation": "bleu"}
    return others[label_type] if label_type in others else METRICS[label_type].PRIMARY
