"""Generate a click log with known click probabilities.

examples:
  headwise simulate mind --titles ag_news/test.csv --out log
  headwise simulate mind --titles news.jsonl --text headline --label topic --drift 1 --interest 0 --out log
  headwise simulate mind --titles ag_news/test.csv --clicks distance --out log
  headwise simulate mind --titles news.csv --impressions 1000000 --users 100000 --out large
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from headwise.cli.arguments import add_options, parse_options
from headwise.simulation.config import SimulationConfig

TEXT = "Generate a click log in the layout of MIND from your own titles, with known click probabilities."


def add_arguments(parser: ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="layout", metavar="LAYOUT", required=True)
    subparser = subparsers.add_parser("mind", description=TEXT, help=TEXT)
    subparser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="new directory for train, dev and test, with their click probabilities",
    )
    add_options(subparser, SimulationConfig, metavars={"titles": "FILE"})


def run(arguments: Namespace) -> int:
    from headwise.simulation.mind import simulate

    values = {name: x for name, x in vars(arguments).items() if name in SimulationConfig.__dataclass_fields__}
    truth = simulate(SimulationConfig(**parse_options(SimulationConfig, values)), arguments.out)
    for name in ("oracle", "popularity"):
        metrics = truth[name]["test"]
        text = ", ".join(f"{metric} {metrics[metric]:.4f}" for metric in ("auc", "mind_mrr", "ndcg@5", "ndcg@10"))
        print(f"{name + ':':<12}{text}")
    if left_out := truth["news"]["left_out"]:
        print(f"{left_out:,} rows without a title were left out")
    print(f"The log is in {arguments.out}")
    return 0
