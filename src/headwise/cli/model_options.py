"""Options of the commands that use a trained model, `evaluate`, `predict` and `inspect`."""

import argparse
import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwise.cluster import add_cluster_option

logger = logging.getLogger(__name__)

#: Options that are passed on to the model's pipeline, which refuses those it does not have.
PIPELINE_OPTIONS = {
    "text": "name of the text column (default: as in the run, or detected)",
    "pair": "name of the second text column",
    "label": "name of the label column",
    "delimiter": "delimiter of the columns of a CSV or TSV file: a character, or tab (default: detected)",
    "source": "source language; must be that of the model",
    "target": "target language; must be that of the model",
}


def add_run_argument(parser: ArgumentParser) -> None:
    """Add the run directory."""
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a finished run")


def add_pipeline_options(parser: ArgumentParser, names: tuple[str, ...]) -> None:
    """Add options of the model's pipeline."""
    for name in names:
        parser.add_argument(f"--{name}", metavar="CHAR" if name == "delimiter" else "NAME", help=PIPELINE_OPTIONS[name])
    parser.add_argument(
        "--clip",
        action="store_true",
        default=None,
        help="truncate sentences that are too long for a translation model; by default they are an error",
    )


def add_skip_option(parser: ArgumentParser) -> None:
    """Add the option to skip invalid rows."""
    parser.add_argument(
        "--skip-bad-rows",
        action="store_true",
        default=None,
        help="skip rows without a text or with an invalid label; by default they are an error",
    )


def pipeline_options(arguments: Namespace) -> dict[str, Any]:
    """Return the values of the options, None for those that are not given."""
    return {
        name: getattr(arguments, name) for name in (*PIPELINE_OPTIONS, "clip", "skip_bad_rows") if name in arguments
    }


def add_job_options(parser: ArgumentParser) -> None:
    """Add the options of commands whose data is divided into parts."""
    parser.add_argument(
        "--processes", type=int, metavar="N", help="number of local processes (default: one per GPU, else 1)"
    )
    add_cluster_option(parser, "run")
    parser.add_argument(
        "--resume", action="store_true", help="continue a command that was stopped, with the same options and --out"
    )
    parser.add_argument(
        "--part-rows",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="number of rows per part; a part is computed by one process, and repeated if the process dies (default: "
        "10000; click logs: 131072)",
    )


def job_options(arguments: Namespace) -> dict[str, Any]:
    """Return the values of the job options that are given."""
    return {
        name: getattr(arguments, name)
        for name in ("processes", "cluster", "resume", "force", "part_rows")
        if name in arguments
    }


@contextmanager
def interrupt_hint(stores_parts: bool) -> Iterator[None]:
    """Log how an interrupted command continues.

    Args:
        stores_parts: whether the command stores the parts that it has finished.
    """
    try:
        yield
    except KeyboardInterrupt:
        logger.warning("\nstopped%s", "; the same command with --resume continues" if stores_parts else "")
        raise
