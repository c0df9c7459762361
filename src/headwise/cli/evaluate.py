"""Compute the metrics of a trained model on its own test split, or on another file with labels.

examples:
  headwise evaluate runs/reviews
  headwise evaluate runs/reviews --data other.csv --out metrics.json
  headwise evaluate runs/mind --data MINDlarge_dev --processes 4 --out metrics.json --resume
  accelerate launch --num-processes 2 -m headwise evaluate runs/reviews
"""

import os
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from pathlib import Path

from headwise.cli.arguments import add_trust_option
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.model_options import (
    add_job_options,
    add_pipeline_options,
    add_run_argument,
    add_skip_option,
    interrupt_hint,
    job_options,
    pipeline_options,
)
from headwise.locks import lock_output


def add_arguments(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="file with labels, with sentence pairs for a translation model, or a directory with queries, documents "
        "and relevance for a ranking model (default: the run's test split)",
    )
    add_pipeline_options(parser, ("text", "pair", "label", "delimiter", "source", "target"))
    add_skip_option(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the metrics to this JSON file")
    parser.add_argument("--force", action="store_true", help="discard the finished parts of a command that was stopped")
    add_job_options(parser)
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    with nullcontext() if arguments.out is None else lock_output(arguments.out, is_directory=False):
        options = pipeline_options(arguments) | job_options(arguments)
        with interrupt_hint(stores_parts=arguments.out is not None):
            from headwise.training.core.run_dir import atomic_write, check_finished, to_json

            check_finished(arguments.run)  # before imports that take seconds
            with raise_caught_interrupts():
                from headwise.training import evaluate  # takes seconds
                from headwise.training.core.printing import format_evaluation

            evaluation = evaluate(arguments.run, arguments.data, out=arguments.out, **options)
        print(format_evaluation(evaluation))
        if arguments.out is not None and os.environ.get("RANK", "0") == "0":
            atomic_write(arguments.out, to_json(evaluation))
    return 0
