"""Options of the commands that use a trained model, `evaluate` and `predict`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

#: Options that are passed on to the model's pipeline, which refuses those it does not have.
PIPELINE_OPTIONS = {
    "text": "column of the text; by default the run's, or found by its name",
    "pair": "column of the second text",
    "label": "column of the label",
    "source": "language to translate from; checked against the model's",
    "target": "language to translate to; checked against the model's",
}


def add_run_argument(parser: ArgumentParser) -> None:
    """Add the run directory."""
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a finished run")


def add_pipeline_options(parser: ArgumentParser, names: tuple[str, ...]) -> None:
    """Add options of the model's pipeline."""
    for name in names:
        parser.add_argument(f"--{name}", metavar="NAME", help=PIPELINE_OPTIONS[name])
    parser.add_argument(
        "--clip",
        action="store_true",
        default=None,
        help="truncate sentences that are too long for a translator, instead of stopping with an error",
    )


def pipeline_options(arguments: Namespace) -> dict[str, Any]:
    """Return the values of the options, None for those that are not given."""
    return {name: getattr(arguments, name) for name in (*PIPELINE_OPTIONS, "clip") if name in arguments}
