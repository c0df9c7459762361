"""Measure time and memory on this machine, in comparison with alternatives.

examples:
  headwise bench attention --out bench
  headwise bench attention --schemes distance-aware rpr --lengths 1024 4096 --out bench
  headwise bench attention --device cuda --dtype bfloat16 --batch 4 --heads 16 --lengths 4096 --out bench
  headwise bench guiding --device cuda --dtype bfloat16 --shapes 64x128 64x256 32x512 8x2048 2x8192 --out bench
"""

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from headwise.cli.arguments import Parser, add_options, parse_options

#: The benchmarks, modules of `headwise.bench`, with their configuration classes and help texts.
BENCHMARKS = {
    "attention": (
        "AttentionBenchConfig",
        "Measure attention: headwise's backends, torch's SDPA, the paper's formula with and without torch.compile, and "
        "FlexAttention.",
    ),
    "guiding": (
        "GuidingBenchConfig",
        "Measure a training step of BERT without guides, with guides, with guides on eager attention maps, and with "
        "retrofitted schemes.",
    ),
}


class BenchmarkParser(Parser):
    """The parser of one benchmark. Its options are added when it is used, because they need torch."""

    benchmark: str

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        add_options(self, load_benchmark(self.benchmark)[1])
        return super().parse_known_args(*args, **kwargs)


def add_arguments(parser: ArgumentParser) -> None:
    subparsers = parser.add_subparsers(
        dest="benchmark", metavar="BENCHMARK", required=True, parser_class=BenchmarkParser
    )
    for name, (_, text) in BENCHMARKS.items():
        subparser = subparsers.add_parser(name, description=text, help=text)
        subparser.benchmark = name
        subparser.add_argument(
            "--out", type=Path, metavar="DIR", help="write the table (CSV, Markdown) and a figure to this directory"
        )


def load_benchmark(name: str) -> tuple[Any, Any]:
    """Return the module of a benchmark and its configuration class."""
    module = import_module(f"headwise.bench.{name}")
    return module, getattr(module, BENCHMARKS[name][0])


def run(arguments: Namespace) -> int:
    module, config_class = load_benchmark(arguments.benchmark)
    names = {field.name for field in fields(config_class)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    config = config_class(**parse_options(config_class, values))
    return 0 if module.bench(config, arguments.out, arguments.command) else 130
