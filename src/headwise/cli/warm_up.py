"""Compile the kernels of attention before their first use, and the C++ code that launches them.

The first call of a kernel takes seconds, because Triton compiles it. Kernels that are compiled here are kept in
Triton's cache (TRITON_CACHE_DIR). The C++ code needs a C++ compiler; it shortens calls with short sequences.

examples:
  headwise warm-up
  headwise warm-up --schemes rpr transformer-xl --head-dims 64 128 --dtypes bfloat16 float16
  headwise warm-up --lengths 512 8192 --processes 4
"""

import logging
import os
from argparse import ArgumentParser, Namespace

logger = logging.getLogger(__name__)

#: The schemes and lengths that are compiled by default: one tile, one loop, and loops over near and far keys.
DEFAULT_SCHEMES = ["plain", "distance-aware", "rpr"]
DEFAULT_LENGTHS = [64, 512, 2048]
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--schemes",
        nargs="+",
        default=DEFAULT_SCHEMES,
        metavar="NAME",
        help="position schemes (default: plain distance-aware rpr)",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        default=DEFAULT_LENGTHS,
        metavar="N",
        help="numbers of tokens (default: 64 512 2048); kernels differ for at most 64, at most 512 and more tokens",
    )
    parser.add_argument("--heads", type=int, default=12, metavar="N", help="number of heads (default: 12)")
    parser.add_argument(
        "--head-dims", nargs="+", type=int, default=[64], metavar="N", help="widths of heads (default: 64)"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=["bfloat16"], help="precisions (default: bfloat16)"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="processes that compile (default: one per core)")
    parser.add_argument("--no-native", action="store_true", help="do not compile the C++ code")


def run(arguments: Namespace) -> int:
    import torch

    from headwise.attention import warm_up

    dtypes = [getattr(torch, name) for name in arguments.dtypes]
    cases = warm_up.list_cases(arguments.schemes, arguments.lengths, arguments.heads, arguments.head_dims, dtypes)
    warm_up.check_gpu()
    if not arguments.no_native:
        warm_up.build_native()
    num_failed = 0
    for number, (case, error) in enumerate(warm_up.compile_cases(cases, number_of_processes(arguments.processes)), 1):
        if error:
            num_failed += 1
            logger.warning("%d of %d: %s: %s", number, len(cases), case, error)
        else:
            logger.info("%d of %d: %s", number, len(cases), case)
    print(f"kernels of {len(cases) - num_failed} of {len(cases)} calls are compiled")
    return 1 if num_failed else 0


def number_of_processes(argument: int | None) -> int:
    """Return how many processes compile."""
    return max(1, argument or os.cpu_count() or 1)
