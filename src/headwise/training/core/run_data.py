"""The data of a run. Studies load it before their first run, without transformers."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The data of a run. Each task type has a subclass with its examples.

    Args:
        task_name: the name of the task.
        label_type: the type of its labels.
        primary_metric: the metric by which the best epoch and the best model are selected.
        description: the origin of the data and how it was split.
    """

    task_name: str
    label_type: str
    primary_metric: str
    description: str
