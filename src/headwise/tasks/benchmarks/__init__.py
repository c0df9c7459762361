"""Built-in tasks: the benchmarks of the papers, and open alternatives."""

import difflib

from headwise.errors import UserError
from headwise.tasks.benchmarks.entities import CONLL2003
from headwise.tasks.benchmarks.inference import HEALTHVER, MEDNLI, MULTINLI, RTE, SNLI
from headwise.tasks.benchmarks.news import AG_NEWS
from headwise.tasks.benchmarks.retrieval import CROSS_GENRE_IR, SCIFACT
from headwise.tasks.benchmarks.reviews import AMAZON, AMAZON_RATING
from headwise.tasks.benchmarks.sentiment import SST2, SST5
from headwise.tasks.mind import MIND
from headwise.tasks.task import Task
from headwise.tasks.translation.task import TRANSLATION

TASKS = (
    AG_NEWS,
    AMAZON,
    AMAZON_RATING,
    SST2,
    SST5,
    SNLI,
    MULTINLI,
    MEDNLI,
    RTE,
    HEALTHVER,
    SCIFACT,
    CROSS_GENRE_IR,
    CONLL2003,
    MIND,
    TRANSLATION,
)


def list_tasks() -> tuple[Task, ...]:
    """Return all built-in tasks."""
    return TASKS


def get_task(name: str) -> Task:
    """Return a built-in task.

    Raises:
        UserError: There is no task of this name.
    """
    for task in TASKS:
        if task.name == name:
            return task
    names = [task.name for task in TASKS]
    nearest = difflib.get_close_matches(name, names, n=1)
    question = f"did you mean {nearest[0]}? " if nearest else ""
    raise UserError(f"no task {name!r}; {question}the tasks are {', '.join(names)}")
