"""Write a model's prediction for each row of a file, in the same order: a label with probabilities, a translation, or
ranks.

examples:
  headwise predict runs/reviews new.csv --out labelled.csv
  headwise predict runs/reviews new.jsonl.gz --text body --out labelled.jsonl.gz
  headwise predict runs/en-de new.en --out new.de
  cat new.en | headwise predict runs/en-de - --out -
"""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path

from headwise.cli.arguments import add_safe_csv_option, add_trust_option
from headwise.cli.model_options import add_pipeline_options, add_run_argument, pipeline_options

logger = logging.getLogger(__name__)


def add_arguments(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "data",
        type=Path,
        metavar="FILE",
        help="CSV, TSV, JSONL, Parquet or Excel, optionally gzipped; for a translation model also plain text with one "
        "sentence per line, or - for standard input",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write; its extension sets the format. For a translation model, - is standard output",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    add_pipeline_options(parser, ("text", "pair", "delimiter", "source", "target"))
    add_safe_csv_option(parser)
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    from headwise.training import predict

    options = pipeline_options(arguments)
    num_empty = predict(arguments.run, arguments.data, arguments.out, force=arguments.force, **options)
    if num_empty:
        logger.warning("%s rows have no text and got no answer", f"{num_empty:,}")
    if str(arguments.out) != "-":
        print(f"Predictions are in {arguments.out}")
    return 0
