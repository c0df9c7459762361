"""The command line: one file for each command, and no logic. A new command is a file and a line here."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from tyro.conf import DisallowNone, FlagCreatePairsOff
from tyro.extras import SubcommandApp

from headwise import __version__
from headwise.cli import bench, simulate
from headwise.cli.compare import Compare
from headwise.cli.errors import in_one_line
from headwise.cli.evaluate import Evaluate
from headwise.cli.inspect import Inspect
from headwise.cli.predict import Predict
from headwise.cli.reproduce import Reproduce, first_task
from headwise.cli.studies import Studies
from headwise.cli.study_options import asking
from headwise.cli.sweep import Sweep
from headwise.cli.tasks import Tasks
from headwise.cli.train import command_for, task_in
from headwise.errors import UserError

ABOUT = """Self-attention that knows how far apart tokens are, and that can be told what to look at.

headwise COMMAND --help tells more about a command, headwise --version the version."""


def commands(args: Sequence[str]) -> SubcommandApp:
    """All commands. What those that train ask for depends on the task."""
    app = SubcommandApp()
    task = task_in(args) if args[:1] in (["train"], ["compare"], ["sweep"]) else None
    app.command(name="train")(command_for(task))
    app.command(name="evaluate")(Evaluate)
    app.command(name="predict")(Predict)
    app.command(name="inspect")(Inspect)
    app.command(name="tasks")(Tasks)
    app.command(name="compare")(asking(Compare, task))
    app.command(name="sweep")(asking(Sweep, task))
    app.command(name="reproduce")(asking(Reproduce, first_task(args) if args[:1] == ["reproduce"] else None))
    app.command(name="studies")(Studies)
    app.command(bench.app, name="bench", help="Time and memory, side by side with what else there is.")
    app.command(simulate.app, name="simulate", help="Data that is made up, with its truth known.")
    return app


def parsed(args: Sequence[str]) -> Any:
    """The command that arguments ask for, with its options, to be called with the line as it was typed.

    Raises:
        UserError: what is asked for does not exist.
    """
    with in_one_line():
        return commands(args).cli(
            prog="headwise", description=ABOUT, args=args, config=(FlagCreatePairsOff, DisallowNone)
        )


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0 when done, 2 for a mistake of the user's, 130 when interrupted.
    """
    args = sys.argv[1:] if args is None else list(args)
    if args == ["--version"]:
        print(f"headwise {__version__}")
        return 0
    try:
        return int(parsed(args)(shlex.join(["headwise", *args])))
    except UserError as mistake:
        return told(str(mistake))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return told(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except KeyboardInterrupt:
        return 130


def told(mistake: str) -> int:
    """A mistake in one line; of several processes, which all know it, the first tells it."""
    if os.environ.get("RANK", "0") == "0":
        print(f"headwise: {mistake}", file=sys.stderr)
    return 2
