"""Measure time and memory on this machine, in comparison with alternatives.

examples:
  headwise bench attention --out bench
  headwise bench attention --schemes distance-aware rpr --lengths 1024 4096 --out bench
  headwise bench attention --device cuda --dtype bfloat16 --batch 4 --heads 16 --lengths 4096 --out bench
  headwise bench guiding --device cuda --dtype bfloat16 --shapes 64x128 64x256 32x512 8x2048 2x8192 --out bench
"""

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from headwise.bench import attention, guiding
from headwise.cli.arguments import add_options, parse_options

#: The benchmarks, with their help texts.
BENCHMARKS: dict[str, tuple[ModuleType, type, str]] = {
    "attention": (
        attention,
        attention.AttentionBenchConfig,
        "Measure attention: headwise's backends, torch's SDPA, the paper's formula with and without torch.compile, and "
        "FlexAttention.",
    ),
    "guiding": (
        guiding,
        guiding.GuidingBenchConfig,
        "Measure a training step of BERT with guides, without guides, and with guides on eager attention maps.",
    ),
}


def add_arguments(parser: ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, (_, config_class, text) in BENCHMARKS.items():
        subparser = subparsers.add_parser(name, description=text, help=text)
        subparser.add_argument(
            "--out", type=Path, metavar="DIR", help="write the table (CSV, Markdown) and a figure to this directory"
        )
        add_options(subparser, config_class)


def run(arguments: Namespace) -> int:
    module, config_class, _ = BENCHMARKS[arguments.benchmark]
    names = {field.name for field in fields(config_class)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    config = config_class(**parse_options(config_class, values))
    return 0 if module.bench(config, arguments.out, arguments.command) else 130
