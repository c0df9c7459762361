"""Tasks: where their data comes from, how it is converted to examples, and their metrics."""

from headwise._extras import require

require("train", __name__)

from headwise.tasks.benchmarks import get_task, list_tasks
from headwise.tasks.load_files import load_files
from headwise.tasks.load_ranking import load_ranking
from headwise.tasks.summary import DataSummary, summarize
from headwise.tasks.task import Examples, LabelType, Task, TrainingDefaults

__all__ = [
    "DataSummary",
    "Examples",
    "LabelType",
    "Task",
    "TrainingDefaults",
    "get_task",
    "list_tasks",
    "load_files",
    "load_ranking",
    "summarize",
]
