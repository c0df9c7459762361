"""Show the attention heads of up to four models: an HTML page that needs no server, figures and tables.

examples:
  headwise inspect runs/reviews --text "A warm and funny film." --out page.html
  headwise inspect runs/plain runs/mdg runs/pdg runs/both --data reviews.csv --rows 3 7-9 --out inspected
  headwise inspect runs/reviews --data corpus.parquet --processes 4 --out inspected --resume
  headwise inspect runs/seed-0 runs/seed-1 runs/seed-2 --out learned
  headwise inspect bert-base-uncased --text "The cat sat." "It slept." --out page.html
  headwise inspect runs/en-de --text "A little girl." --target "Ein kleines Mädchen." --out alignments
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from headwise.cli.arguments import add_safe_csv_option, add_trust_option
from headwise.cli.interrupts import raise_caught_interrupts
from headwise.cli.model_options import add_job_options, interrupt_hint, job_options
from headwise.errors import UserError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="run directory, or directory or name of a Hugging Face model; up to four",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR|PAGE.html",
        help="directory for the page, figures (PNG and SVG) and tables; or a file for the page only",
    )
    parser.add_argument(
        "--text",
        nargs="+",
        default=(),
        metavar="TEXT",
        help="texts to show. Without --text and --data, only the learned parameters of distance-aware heads are "
        "plotted, for any number of runs; runs that differ only in their seed are plotted as one line",
    )
    parser.add_argument(
        "--pair", nargs="+", default=(), metavar="TEXT", help="second text for each text, for models of text pairs"
    )
    parser.add_argument(
        "--target",
        nargs="+",
        default=(),
        metavar="TEXT",
        help="target for each text, which the decoder of a translator or another encoder-decoder model reads; by "
        "default the text that the model generates",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="file of texts (CSV, TSV, JSONL or Parquet, optionally gzipped): statistics of all rows, maps of --rows",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        default=(),
        metavar="NAME",
        help="names of the text column and of the second text column",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        default=(),
        metavar="ROW",
        help="rows to show, numbered from 1, such as 3 or 7-9 (default: 1-4)",
    )
    parser.add_argument("--force", action="store_true", help="replace existing output")
    add_job_options(parser)
    add_safe_csv_option(parser)
    add_trust_option(parser)


def run(arguments: Namespace) -> int:
    if arguments.pair and len(arguments.pair) != len(arguments.text):
        raise UserError(
            f"--pair has {len(arguments.pair)} texts, --text has {len(arguments.text)}; give as many of each"
        )
    pairs = zip(arguments.text, arguments.pair, strict=True) if arguments.pair else [(text,) for text in arguments.text]
    with interrupt_hint(stores_parts=arguments.data is not None):
        from headwise.training.core.model_names import check_directory

        for model in arguments.models:
            check_directory(model)  # before imports that take seconds
        with raise_caught_interrupts():
            from headwise.training.inspect import inspect  # takes seconds

        inspected = inspect(
            tuple(arguments.models),
            arguments.out,
            texts=list(pairs),
            targets=tuple(arguments.target),
            data=arguments.data,
            columns=tuple(arguments.columns),
            rows=tuple(arguments.rows),
            **job_options(arguments),
        )
    if inspected.viewer:
        print(f"The results are in {arguments.out}; open {inspected.page} in a browser")
    else:
        print(f"The figures are in {inspected.page}")
    return 0
