"""The command line: one file for each command, and no logic. A new command is a file and a line here."""

import os
import shlex
import sys
from collections.abc import Sequence

from tyro.conf import DisallowNone, FlagCreatePairsOff
from tyro.extras import SubcommandApp

from headwise import __version__
from headwise.cli import bench, simulate
from headwise.cli.evaluate import Evaluate
from headwise.cli.inspect import Inspect
from headwise.cli.mistakes import in_one_line
from headwise.cli.predict import Predict
from headwise.cli.tasks import Tasks
from headwise.cli.train import Train
from headwise.mistakes import Mistake

ABOUT = """Self-attention that knows how far apart tokens are, and that can be told what to look at.

headwise COMMAND --help tells more about a command, headwise --version the version."""

app = SubcommandApp()
app.command(name="train")(Train)
app.command(name="evaluate")(Evaluate)
app.command(name="predict")(Predict)
app.command(name="inspect")(Inspect)
app.command(name="tasks")(Tasks)
app.command(bench.app, name="bench", help="Time and memory, side by side with what else there is.")
app.command(simulate.app, name="simulate", help="Data that is made up, with its truth known.")


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
        with in_one_line():
            command = app.cli(prog="headwise", description=ABOUT, args=args, config=(FlagCreatePairsOff, DisallowNone))
        return int(command(shlex.join(["headwise", *args])))
    except Mistake as mistake:
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
