"""`headwise tasks`: what there is to learn by name."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """List the tasks that have a name: what they ask, their metric, and where their data comes from.

    $ headwise tasks
    """

    def __call__(self, command: str) -> int:
        from headwise.training.core.printing import print_tasks

        print_tasks()
        return 0
