"""Measure time and memory on this machine, side by side with alternatives.

examples:
  headwise bench attention --out bench
  headwise bench attention --schemes distance-aware rpr --lengths 1024 4096 --out bench
  headwise bench attention --device cuda --dtype bfloat16 --batch 4 --heads 16 --lengths 4096 --out bench
  headwise bench guiding --device cuda --dtype bfloat16 --shapes 64x128 64x256 32x512 8x2048 2x8192 --out bench
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType

from headwise.bench import attention, guiding
from headwise.cli.arguments import add_options, parse_options

#: The benchmarks, with their help texts.
BENCHMARKS: dict[str, tuple[ModuleType, str]] = {
    "attention": (
        attention,
        "Attention operators: our backends, torch's SDPA, the paper's formula, torch.compile of it, and FlexAttention.",
    ),
    "guiding": (
        guiding,
        "A training step of BERT with guides, without guides, and with guides that read eager attention maps.",
    ),
}


def add_arguments(parser: ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, (module, text) in BENCHMARKS.items():
        subparser = subparsers.add_parser(name, description=text, help=text)
        subparser.add_argument(
            "--out", type=Path, metavar="FOLDER", help="write the table (CSV, Markdown) and a figure to this folder"
        )
        add_options(subparser, module.Settings)


def run(arguments: Namespace) -> int:
    module, _ = BENCHMARKS[arguments.benchmark]
    values = {name: value for name, value in vars(arguments).items() if name in module.Settings.__dataclass_fields__}
    config = module.Settings(**parse_options(module.Settings, values))
    return 0 if module.bench(config, arguments.out, arguments.command) else 130
