"""Options and helpers of the commands that run studies."""

import logging
import math
import signal
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from headwise.cli.arguments import add_safe_csv_option, add_trust_option
from headwise.cli.run_options import config_class_of, option_names, run_values, split_task
from headwise.cluster import add_cluster_option, check_cluster
from headwise.errors import UserError
from headwise.training.core.config import RunConfig, option_name
from headwise.training.core.defaults import DEFAULT_TRIALS

if TYPE_CHECKING:
    from headwise.studies.study import Study
    from headwise.studies.worker_pool import Resources

logger = logging.getLogger(__name__)


def add_study_options(parser: ArgumentParser) -> None:
    """Add the options of every study."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="directory for the study: runs, logs, tables, report.html"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="number of seeds; the first is --seed (default: compare 10, sweep 1, reproduce 1 to 10, by study)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="number of runs at the same time; small runs can share a GPU (default: 1; on a cluster, as many as fit)",
    )
    parser.add_argument("--gpus", nargs="+", default=(), metavar="N", help="GPUs that are assigned to the jobs in turn")
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="database of the study: postgresql://…, or journal:///FILE on a network disk (default: a file in the "
        "study's directory)",
    )
    add_cluster_option(parser, "train the runs")
    parser.add_argument(
        "--storage-path",
        metavar="PATH|URL",
        help="where results, logs and checkpoints of runs are stored: a path or any URL of fsspec, such as "
        "s3://bucket/dir (default: --out, which all machines then share)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the study in the directory and retry failed runs",
    )
    add_safe_csv_option(parser)
    add_trust_option(parser)


def add_tune_option(parser: ArgumentParser, default: str) -> None:
    """Add the number of dev trials of each method.

    Args:
        parser: the parser.
        default: what happens without the option, for the help text.
    """
    parser.add_argument(
        "--tune",
        nargs="?",
        type=int,
        const=DEFAULT_TRIALS,
        metavar="N",
        dest="trials",
        help="tune every method, baseline and controls included, with the same number of dev trials: the learning rate "
        "and, where a method has them, learning rate and initial values of the scheme, scale of positions, strength of "
        f"guides; then test with other seeds (N is {DEFAULT_TRIALS} if not given; {default})",
    )


def add_margin_option(parser: ArgumentParser) -> None:
    """Add the margin of the equivalence test."""
    parser.add_argument(
        "--margin",
        type=parse_margin,
        metavar="POINTS",
        help="largest difference that counts as none in the equivalence test (default: 1 point, 0.5 BLEU, 2%% of an "
        "error)",
    )


def parse_margin(text: str) -> float:
    """Return the value of --margin.

    Raises:
        ArgumentTypeError: it is not a positive number.
    """
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0.0 < margin < math.inf:
        raise ArgumentTypeError(f"must be a positive number, not {text!r}")
    return margin


def require_out(arguments: Namespace) -> Path:
    """Return the study's directory.

    Raises:
        UserError: it was not given.
    """
    if arguments.out is None:
        raise UserError("--out is required: the directory for the study")
    path: Path = arguments.out
    return path


def check_resume(arguments: Namespace) -> None:
    """Check that --resume is used without options that would change the study.

    Raises:
        UserError: there are such options, which would have no effect.
    """
    if not arguments.resume:
        return
    flags = {"task", "methods", "models", "baseline", "margin", "over", "keep_models", "trials"}
    given = [x for x, value in vars(arguments).items() if x in option_names() or (x in flags and value)]
    if given:
        names = {"models": "--model", "trials": "--trials" if "sampler" in arguments else "--tune"}
        options = ", ".join(names.get(x, option_name(x)) for x in given)
        raise UserError(f"--resume continues the study with its own options; leave out {options}")


def resources(arguments: Namespace) -> "Resources":
    """Return what the study may use: of this machine, or the cluster.

    Raises:
        UserError: the cluster does not answer.
    """
    from headwise.studies.worker_pool import Resources

    if arguments.cluster is not None:
        check_cluster(arguments.cluster)
    return Resources(arguments.jobs, tuple(arguments.gpus), arguments.cluster)


def resume_study(arguments: Namespace, out: Path, kinds: Sequence[str] = ()) -> "Study":
    """Open the study that --resume continues."""
    from headwise.studies.study import Study

    return Study.resume(
        out, storage=arguments.storage, storage_path=arguments.storage_path, seeds=arguments.seeds, kinds=kinds
    )


def base_config(arguments: Namespace, text: str | None) -> RunConfig:
    """Return the configuration that all runs of a task share.

    Args:
        arguments: the parsed arguments.
        text: the task, as NAME or NAME=PATH; None for own data.

    Raises:
        UserError: an option does not apply to the task, or the data is not there or cannot be loaded.
    """
    from headwise.studies.plan import check_data
    from headwise.studies.power import check_test_sets

    task, task_values = split_task(arguments, text)
    config = config_class_of(task)(**run_values(arguments, task) | task_values)
    check_data(config)
    check_test_sets({"": config})
    return config


@contextmanager
def resume_hint(command: str, out: Path, cluster: str | None) -> Iterator[None]:
    """Tell a user who interrupts a study how to continue it, also while the report is written."""
    from headwise.studies.interrupts import interrupt_on

    try:
        with interrupt_on(signal.SIGINT, signal.SIGTERM):
            yield
    except KeyboardInterrupt:
        option = "" if cluster is None else f" --cluster {quote(cluster)}"
        logger.warning("\nInterrupted. To continue: headwise %s --resume --out %s%s", command, quote(str(out)), option)
        raise
