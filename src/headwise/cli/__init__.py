"""The command line: one module for each command, without logic of its own. A new command is a module and a line here.

A command's module has a docstring, which is its help text, `add_arguments(parser)` and `run(arguments)`, which returns
the exit code. Modules are imported when their command is called.
"""

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from typing import Any, TextIO

from headwise import __version__
from headwise._extras import require
from headwise.cli.arguments import Parser, add_output_options, suggest
from headwise.cli.interrupts import Terminated, raise_on_termination
from headwise.csv_cells import safe_csv
from headwise.errors import UserError, to_one_line

#: The commands, with their line in `headwise --help`.
COMMANDS = {
    "train": "train a model on labelled texts, sentence pairs or a click log",
    "evaluate": "compute a trained model's metrics on its test split or another file",
    "adapt": "continue the pre-training of a model on unlabelled texts",
    "predict": "label or translate the rows of a file, or rank its candidates",
    "inspect": "show attention maps and head statistics on an HTML page",
    "compare": "compare methods over many seeds, with a statistical test",
    "sweep": "search values of guide weights or other options on the dev split",
    "reproduce": "repeat the experiments of a table or figure of the papers",
    "studies": "list comparisons, sweeps and reproductions",
    "tasks": "list the built-in tasks",
    "bench": "measure time and memory in comparison with alternatives",
    "fuse": "fuse the attention of a model with relative positions, and measure the gain",
    "warm-up": "compile the kernels of attention before their first use",
    "simulate": "generate a click log with known click probabilities",
}

#: The extras that commands need. All others need `train`.
COMMAND_EXTRAS: dict[str, str | None] = {
    "warm-up": None,
    "inspect": "inspect",
    "bench": "inspect",
    "compare": "studies",
    "sweep": "studies",
    "reproduce": "studies",
    "studies": "studies",
}

USAGE = "headwise COMMAND [options]"


def main(args: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 0 for success, 2 for a user's error, 130 when interrupted, 143 when terminated.
    """
    args = sys.argv[1:] if args is None else list(args)
    try:
        with raise_on_termination():
            return run(args)
    except UserError as error:
        return report_error(str(error))
    except SystemExit as stop:  # argparse, after it has printed a help text
        return int(stop.code or 0)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return report_error(to_one_line(message))
    except MemoryError:
        return report_error("out of memory; use a smaller --batch-size, a smaller model or fewer --jobs")
    except Terminated:
        return 143
    except KeyboardInterrupt:
        return 130


def run(args: Sequence[str]) -> int:
    """Parse the arguments and run the command they name.

    Raises:
        UserError: the arguments are wrong, or the command cannot be carried out.
    """
    if args in ([], ["--help"], ["-h"]):
        print(overview())
        return 0
    if args == ["--version"]:
        print(f"headwise {__version__}")
        return 0
    with progress_bars("--quiet" not in args and is_first_process()):
        command, arguments = parse(args)
        trusted, safe = (getattr(arguments, name, False) for name in ("trust_remote_code", "safe_csv"))
        with quiet_other_processes(), logging_to_stderr(level(arguments)), trust(trusted), safe_csv(safe):
            return int(command.run(arguments))


def parse(args: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """Return the module of the command that the arguments name, and its parsed arguments.

    Raises:
        UserError: the arguments are wrong.
    """
    name, *rest = args
    if name not in COMMANDS:
        raise UserError(
            f"unknown {'option' if name.startswith('-') else 'command'} {name}{suggest(name, COMMANDS)} "
            "(see headwise --help)"
        )
    extra = COMMAND_EXTRAS.get(name, "train")
    if extra is not None:
        require(extra, f"headwise {name}")
    command = import_module(f"headwise.cli.{name.replace('-', '_')}")
    parser = Parser(prog=f"headwise {name}", description=command.__doc__)
    add_output_options(parser)
    command.add_arguments(parser)
    arguments = parser.parse(rest)
    arguments.command = shlex.join(["headwise", *args])
    return command, arguments


def overview() -> str:
    """Return the text of `headwise --help`."""
    lines = [f"usage: {USAGE}", "", "Position-aware attention and attention guiding for PyTorch and Hugging Face.", ""]
    lines += ["commands:", *(f"  {name:<12}{text}" for name, text in COMMANDS.items()), ""]
    lines += ["headwise COMMAND --help describes a command; headwise --version prints the version."]
    return "\n".join(lines)


def level(arguments: argparse.Namespace) -> int:
    """Return the logging level that a user asked for; of several processes, only the first one reports."""
    if not is_first_process():
        return logging.ERROR
    return logging.WARNING if arguments.quiet else logging.DEBUG if arguments.verbose else logging.INFO


def is_first_process() -> bool:
    """Return whether this is the only process of a command, or the first one of a distributed command."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def progress_bars(are_shown: bool) -> Iterator[None]:
    """Show progress bars, or none."""
    if are_shown:
        yield
        return
    previous = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    try:
        yield
    finally:
        del os.environ["TQDM_DISABLE"]
        if previous is not None:
            os.environ["TQDM_DISABLE"] = previous


@contextmanager
def quiet_other_processes() -> Iterator[None]:
    """Print no results of a distributed command, except in its first process."""
    if is_first_process():
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null):
        yield


def trust(remote_code: bool) -> AbstractContextManager[None]:
    """Return the context in which the Python code of model directories is run, if the user asked for it."""
    if not remote_code:
        return nullcontext()
    from headwise.training.core import pretrained

    return pretrained.remote_code(True)


class LineHandler(logging.StreamHandler[TextIO]):
    """Prints each message on a line of its own, above the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm = sys.modules.get("tqdm")  # without it there are no bars
        with nullcontext() if tqdm is None else tqdm.tqdm.external_write_mode(self.stream):
            super().emit(record)


@contextmanager
def logging_to_stderr(threshold: int) -> Iterator[None]:
    """Print the messages of headwise's loggers to standard error, while a command runs."""
    logger = logging.getLogger("headwise")
    handler = LineHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    previous = logger.level
    logger.addHandler(handler)
    logger.setLevel(threshold)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous)


def report_error(message: str) -> int:
    """Print an error in one line; of several processes, which all have it, the first one prints."""
    if os.environ.get("RANK", "0") == "0":
        print(f"headwise: error: {message}", file=sys.stderr)
    return 2
