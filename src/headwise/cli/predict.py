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

from headwise.cli.arguments import add_trust_option

logger = logging.getLogger(__name__)

#: Options that are passed on to the model's pipeline, which refuses those that it does not have.
COLUMNS = {
    "text": "name of the text column (default: as in the run)",
    "pair": "name of the second text column",
    "source": "source language; must be that of the model",
    "target": "target language; must be that of the model",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a finished run")
    parser.add_argument(
        "data",
        type=Path,
        metavar="FILE",
        help="CSV, TSV, JSONL or Parquet, optionally gzipped; for a translation model also plain text with one "
        "sentence per line, or - for standard input",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write; its extension sets the format. For a translation model, - is standard output",
    )
    for name, text in COLUMNS.items():
        parser.add_argument(f"--{name}", metavar="NAME", help=text)
    parser.add_argument(
        "--clip",
        action="store_true",
        default=None,
        help="truncate sentences that are too long for a translation model; by default they are an error",
    )
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    from headwise.training import predict

    options = {name: getattr(arguments, name) for name in (*COLUMNS, "clip")}
    num_empty = predict(arguments.run, arguments.data, arguments.out, **options)
    if num_empty:
        logger.warning("%s rows have no text and got no answer", f"{num_empty:,}")
    if str(arguments.out) != "-":
        print(f"Predictions are in {arguments.out}")
    return 0
