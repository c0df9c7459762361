"""Train a model on your own data or on a built-in task. The model, its metrics and a model card are written to a
directory.

examples:
  headwise train --data reviews.csv --model distance-aware --vectors glove.6B.300d.txt --out runs/reviews
  headwise train --data reviews.csv --model bert-base-uncased --guides mdg pdg --out runs/guided
  headwise train --data reviews.csv --model bert-base-uncased --retrofit distance-aware --out runs/distance
  headwise train --task sst2 --data sst2/ --model plain --out runs/sst2
  headwise train --task translation --data multi30k --source en --target de --model small --out runs/en-de
  headwise train --task mind --data MINDsmall --vectors glove.6B.300d.txt --out runs/mind
  headwise train --config runs/sst2/run.yaml --out runs/again
  headwise train --data reviews.csv --model bert-base-uncased --lora --tune --out runs/lora
  accelerate launch --num-processes 2 -m headwise train --data reviews.csv --out runs/both
  headwise train --data /shared/reviews.csv --cluster auto --processes 8 --out /shared/runs/reviews
"""

import logging
import os
from argparse import Namespace
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote

from headwise.cli.arguments import Parser, add_trust_option, option_name
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.run_options import add_run_options, config_class_of, run_values, split_task
from headwise.cluster import add_cluster_option
from headwise.errors import UserError
from headwise.training.core.config import RunConfig
from headwise.training.registry import load_config

logger = logging.getLogger(__name__)


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments)


def add_own_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--task",
        metavar="NAME[=PATH]",
        help="built-in task, see headwise tasks, and the path of its data (default: your own data)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (required)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="run.yaml of a run to repeat; options on the command line override it",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing run in the directory")
    parser.add_argument("--resume", action="store_true", help="continue an unfinished run in the directory")
    parser.add_argument(
        "--push-to-hub",
        metavar="OWNER/NAME",
        help="upload the finished run, without checkpoints and predictions, to this repository on the Hugging Face Hub",
    )
    parser.add_argument("--hub-private-repo", action="store_true", help="make the new repository private")
    add_cluster_option(parser, "train")
    parser.add_argument(
        "--processes", type=int, metavar="N", help="number of processes on the cluster (default: its GPUs, else 1)"
    )
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    if arguments.processes is not None and arguments.cluster is None:
        raise UserError(
            "--processes requires --cluster; on one machine: "
            f"accelerate launch --num-processes {arguments.processes} -m headwise train ..."
        )
    config = build_config(arguments)
    options = {name: getattr(arguments, name) for name in ("force", "resume", "push_to_hub", "hub_private_repo")}
    try:
        with raise_caught_interrupts():
            from headwise.training import train  # takes seconds
            from headwise.training.core.printing import format_result

        if arguments.cluster is not None:
            from headwise.training.ray_train import train_on_cluster

            options |= {"address": arguments.cluster, "processes": arguments.processes}
            result = train_on_cluster(config, arguments.out, trust_remote_code=arguments.trust_remote_code, **options)
        else:
            result = train(config, arguments.out, **options)
    except KeyboardInterrupt:
        logger.warning("\n%s", describe_stop(arguments.out, arguments.cluster, arguments.push_to_hub, arguments.force))
        raise
    if os.environ.get("RANK", "0") == "0":
        print(format_result(result))
        if result.hub_url is not None:
            print(f"Uploaded: {result.hub_url}")
    return 0


def describe_stop(out: Path, cluster: str | None, repository: str | None = None, force: bool = False) -> str:
    """Return the message for a run that the user has stopped, which was to be uploaded to the repository."""
    is_uploading = repository is not None and not force  # a finished run is an older one with --force
    if not (out / "run.yaml").is_file() or ((out / "metrics.json").exists() and not is_uploading):
        return "stopped before the run began; nothing was changed"
    options = "" if cluster is None else f" --cluster {quote(cluster)}"
    options += "" if repository is None else f" --push-to-hub {quote(repository)}"
    return f"stopped; --resume continues: headwise train --resume --out {quote(str(out))}{options}"


def build_config(arguments: Namespace) -> RunConfig:
    """Return the run's configuration: the file's values, overridden by the options.

    Raises:
        UserError: an option is missing or invalid, or contradicts the run that is to be resumed.
    """
    if arguments.out is None:
        raise UserError("--out is required: the directory for the run")
    saved = arguments.out / "run.yaml"
    if arguments.resume and not saved.is_file():
        raise UserError(f"--resume: {arguments.out} contains no run ({saved.name} is missing)")
    task, task_values = split_task(arguments, arguments.task)
    if arguments.config is None and not arguments.resume:
        return config_class_of(task)(**run_values(arguments, task) | task_values)
    base = load_config(arguments.config or saved)
    task = task or base.task
    if config_class_of(task) is not type(base):
        raise UserError(f"--task {task} has other options than the run in {arguments.config or saved}")
    config = replace(base, **run_values(arguments, task) | task_values)
    if arguments.resume:
        check_unchanged(config.resolve_paths(), load_config(saved))
    return config


def check_unchanged(config: RunConfig, saved: RunConfig) -> None:
    """Refuse to resume a run with another configuration.

    Raises:
        UserError: an option differs.
    """
    for field in fields(saved):
        new, old = getattr(config, field.name, None), getattr(saved, field.name)
        if new != old:
            raise UserError(
                f"{option_name(field.name)} {new!r} differs from the run that is resumed ({old!r}); leave it out, or "
                "start a new run"
            )
