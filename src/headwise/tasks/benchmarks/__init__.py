"""Built-in tasks: the benchmarks of the papers, and open alternatives."""

from headwise.errors import UserError
from headwise.tasks.benchmarks.entities import CONLL2003
from headwise.tasks.benchmarks.inference import HEALTHVER, MEDNLI, MULTINLI, RTE, SNLI
from headwise.tasks.benchmarks.news import AG_NEWS
from headwise.tasks.benchmarks.retrieval import CROSS_GENRE_IR, SCIFACT
from headwise.tasks.benchmarks.reviews import AMAZON, AMAZON_RATING
from headwise.tasks.benchmarks.sentiment import SST2, SST5
from headwise.tasks.task import Task

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
    raise UserError(f"no task {name!r}; the tasks are {', '.join(task.name for task in TASKS)}")
