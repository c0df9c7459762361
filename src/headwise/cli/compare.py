"""Compare methods on your own data or on built-in tasks. Every method is trained with the same seeds, splits, batches
and initial values. The result is a table with confidence intervals and tests. Training options apply to all methods.

examples:
  headwise compare --data reviews.csv --methods plain rpr distance-aware --vectors glove.6B.300d.txt --out study
  headwise compare --data reviews.csv --methods bert-base-uncased+mdg+pdg --seeds 10 --out study
  headwise compare --data reviews.csv --methods bert-base-uncased+retrofit:rpr --tune 8 --seeds 10 --out study
  headwise compare --task sst2=data/sst2 --task ag-news=data/ag_news --methods plain tener --jobs 8 --out study
  headwise compare --data reviews.csv --methods wide="--model rpr --heads 32" narrow="--model rpr" --out study
  headwise compare --data reviews.csv --methods plain rpr --cluster auto --storage-path s3://bucket/studies --out study
  headwise compare --resume --seeds 20 --out study
"""

import re
import shlex
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING

from headwise.cli.arguments import Parser
from headwise.cli.run_options import add_run_options, run_values
from headwise.cli.study_options import (
    add_margin_option,
    add_study_options,
    add_tune_option,
    base_config,
    check_resume,
    require_out,
    resources,
    resume_hint,
)
from headwise.errors import UserError
from headwise.training.core.config import RunConfig

if TYPE_CHECKING:
    from headwise.studies.methods import Method

DEFAULT_SEEDS = 10


def add_arguments(parser: Parser) -> None:
    add_run_options(parser, add_own_arguments, exclude=["tune"])


def add_own_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="NAME[=PATH]",
        help="built-in task, see headwise tasks, and the path of its data; can be repeated (default: your own data)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=(),
        metavar="METHOD",
        help='schemes (none, plain, rpr, …), MODEL, MODEL+mdg+pdg, MODEL+retrofit:distance-aware, or NAME="--model … '
        '--guides …" with any training options. Their controls are added',
    )
    parser.add_argument("--baseline", metavar="METHOD", help="method to compare the others with (default: the control)")
    add_tune_option(parser, "default: not tuned")
    add_margin_option(parser)
    parser.add_argument(
        "--keep-models", action="store_true", help="keep the models of all seeds, not only of the first"
    )
    add_study_options(parser)


def run(arguments: Namespace) -> int:
    from headwise.studies import compare

    check_resume(arguments)
    out, machine = require_out(arguments), resources(arguments)
    if arguments.resume:
        study = compare.resume_comparison(
            out, storage=arguments.storage, storage_path=arguments.storage_path, seeds=arguments.seeds
        )
    else:
        configs = base_configs(arguments)
        study = compare.create_comparison(
            configs,
            [parse_method_argument(text, configs[0]) for text in arguments.methods],
            DEFAULT_SEEDS if arguments.seeds is None else arguments.seeds,
            out,
            baseline=arguments.baseline,
            storage=arguments.storage,
            storage_path=arguments.storage_path,
            keep_models=arguments.keep_models,
            margin=arguments.margin,
            trials=arguments.trials,
        )
    with resume_hint("compare", out, arguments.cluster):
        return 0 if compare.run_comparison(study, machine) else 1


def base_configs(arguments: Namespace) -> list[RunConfig]:
    """Return, for each task, the configuration that all methods share."""
    if not arguments.methods:
        raise UserError("--methods is required, for example --methods plain rpr distance-aware")
    if not arguments.task:
        return [base_config(arguments, None)]
    if len(arguments.task) > 1 and "data" in arguments:
        raise UserError("--data is for one task; with several, use --task sst2=PATH --task ag-news=PATH")
    return [base_config(arguments, text) for text in arguments.task]


def parse_method_argument(text: str, base: RunConfig) -> "Method":
    """Return a method from its short form, or from a name with options of training.

    Raises:
        UserError: the method or one of its options is unknown.
    """
    from headwise.studies.methods import Method, parse_method

    match = re.fullmatch(r"([^=\s]+)=\s*((?:--.*)?)", text, re.DOTALL)
    if match is None:
        return parse_method(text)
    name, options = match.groups()
    parser = Parser(prog=name)
    add_run_options(parser, lambda _: None)
    try:
        values = run_values(parser.parse(shlex.split(options)), base.task)
    except UserError as error:
        raise UserError(f"--methods {name}: {error}") from None
    shared = asdict(base)
    return Method(name, {option: value for option, value in values.items() if value != shared[option]})
