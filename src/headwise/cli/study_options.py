"""What commands that conduct studies have in common."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tyro.conf import arg

from headwise.errors import UserError
from headwise.training.core.config import RunConfig
from headwise.training.registry import get_task_type

if TYPE_CHECKING:
    from headwise.studies.worker_pool import Resources


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What every study asks besides settings of training."""

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The study's folder: runs, logs, tables, report.html."""
    seeds: int | None = None
    """How many, counted from --seed."""
    jobs: int = 1
    """Runs at once on this machine, several on one GPU; small ones leave most of it idle."""
    gpus: Annotated[tuple[str, ...], arg(metavar="NUMBERS")] = ()
    """Which GPUs; runs take them in turn."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """postgresql://…, for workers on several machines; by default a file in the study's folder."""
    resume: bool = False
    """Go on with the study in the folder, try again what failed, or help other machines with it."""

    def __post_init__(self) -> None:
        if self.out is None:
            raise UserError("--out FOLDER is missing: where shall the study go?")

    def machine(self) -> "Resources":
        from headwise.studies.worker_pool import Resources

        return Resources(self.jobs, self.gpus)

    def base(self, task: str | None, data: str | None = None) -> RunConfig:
        """The settings that all runs of a task share."""
        from headwise.studies.plan import check_data

        made = get_task_type(task).config_class
        given = {field.name: getattr(self, field.name) for field in fields(made) if hasattr(self, field.name)}
        found = made(**{**given, "task": task, **({} if data is None else {"data": (data,)})})
        check_data(found)
        return found


T = TypeVar("T", bound=StudyOptions)


def asking(command: type[T], task: str | None) -> type[T]:
    """A command that asks for the settings of a task's kind, too; the task may have its data's place behind it."""
    settings = get_task_type((task or "").partition("=")[0]).config_class
    made: Any = make_dataclass(command.__name__, [], bases=(command, settings), frozen=True, kw_only=True)
    made.__doc__ = command.__doc__
    made.__module__ = command.__module__
    return made  # type: ignore[no-any-return]


@contextmanager
def resumable(command: str, out: Path) -> Iterator[None]:
    """Who stops a study is told how it goes on; also who stops it while it writes its report."""
    from headwise.studies.worker_pool import interrupt_on

    try:
        with interrupt_on(signal.SIGINT, signal.SIGTERM):
            yield
    except KeyboardInterrupt:
        print(f"\nheadwise: stopped; headwise {command} --resume --out {quote(str(out))} goes on", file=sys.stderr)
        raise
