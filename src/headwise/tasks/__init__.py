"""What is learnt: where its data comes from, how it becomes examples, which metrics judge it."""

from headwise.tasks.benchmarks import listed, named
from headwise.tasks.own import own
from headwise.tasks.task import Examples, Kind, Settings, Task

__all__ = ["Examples", "Kind", "Settings", "Task", "listed", "named", "own"]
