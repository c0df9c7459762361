"""Write a model's prediction for each row of a file, in the same order: a label with probabilities, a translation, or
ranks. Files of any size are read in parts, on all local GPUs or on a Ray cluster.

examples:
  headwise predict runs/reviews new.csv --out labelled.csv
  headwise predict runs/reviews new.jsonl.gz --text body --out labelled.jsonl.gz
  headwise predict runs/reviews new.csv --out - | head
  headwise predict runs/en-de new.en --out new.de
  cat new.en | headwise predict runs/en-de - --out -
  headwise predict runs/search queries.csv --documents articles.csv --out ranked.csv
  headwise predict runs/reviews shards/*.parquet --processes 4 --out labelled/
  headwise predict runs/reviews shards/ --cluster auto --out /shared/labelled/ --resume
"""

import logging
from argparse import ArgumentParser, Namespace
from pathlib import Path

from headwise.cli.arguments import add_safe_csv_option, add_trust_option
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.model_options import (
    add_job_options,
    add_pipeline_options,
    add_run_argument,
    interrupt_hint,
    job_options,
    pipeline_options,
)

logger = logging.getLogger(__name__)


def add_arguments(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "data",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="CSV, TSV, JSONL, Parquet or Excel, optionally gzipped, or directories of them; for a translation model "
        "also plain text with one sentence per line, or - for standard input",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="file to write; its extension sets the format. For several input files, a directory for files of the same "
        "names. - is standard output, in the format of the input (CSV for Excel, JSON Lines for Parquet)",
    )
    parser.add_argument("--force", action="store_true", help="replace existing output")
    add_pipeline_options(parser, ("text", "pair", "delimiter", "source", "target"))
    parser.add_argument(
        "--documents",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of documents, for a ranking model: the input contains queries, and the output their best "
        "documents. BM25 selects 20 candidates for each query, which the model ranks",
    )
    add_job_options(parser)
    add_safe_csv_option(parser)
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    data = arguments.data[0] if len(arguments.data) == 1 else arguments.data
    options = pipeline_options(arguments) | job_options(arguments) | {"documents": arguments.documents}
    with interrupt_hint(stores_parts=True):
        from headwise.training.core.run_dir import check_finished

        check_finished(arguments.run)  # before imports that take seconds
        with raise_caught_interrupts():
            from headwise.training import predict  # takes seconds

        num_empty = predict(arguments.run, data, arguments.out, **options)
    if num_empty:
        row, rows, result = ("query", "queries", "ranking") if arguments.documents else ("row", "rows", "answer")
        subject = f"{num_empty:,} {rows} have" if num_empty > 1 else f"1 {row} has"
        logger.warning("%s no text and got no %s", subject, result)
    if str(arguments.out) != "-":
        print(f"Predictions are in {arguments.out}")
    return 0
