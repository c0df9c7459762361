"""Compute the metrics of a trained model on its own test split, or on another file with labels.

examples:
  headwise evaluate runs/reviews
  headwise evaluate runs/reviews --data other.csv --out metrics.json
"""

from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from pathlib import Path

from headwise.cli.arguments import add_trust_option
from headwise.locks import lock_output

#: Options that are passed on to the model's pipeline, which refuses those that it does not have.
COLUMNS = {
    "text": "name of the text column (default: as in the run, or detected)",
    "pair": "name of the second text column",
    "label": "name of the label column",
    "source": "source language; must be that of the model",
    "target": "target language; must be that of the model",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a finished run")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="file with labels, or with sentence pairs for a translation model (default: the run's test split)",
    )
    for name, text in COLUMNS.items():
        parser.add_argument(f"--{name}", metavar="NAME", help=text)
    parser.add_argument(
        "--clip",
        action="store_true",
        default=None,
        help="truncate sentences that are too long for a translation model; by default they are an error",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the metrics to this JSON file")
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    from headwise.training import evaluate
    from headwise.training.core.printing import print_evaluation
    from headwise.training.core.run_dir import atomic_write, to_json

    options = {name: getattr(arguments, name) for name in (*COLUMNS, "clip")}
    with nullcontext() if arguments.out is None else lock_output(arguments.out, is_directory=False):
        evaluation = evaluate(arguments.run, arguments.data, **options)
        print_evaluation(evaluation)
        if arguments.out is not None:
            atomic_write(arguments.out, to_json(evaluation))
    return 0
