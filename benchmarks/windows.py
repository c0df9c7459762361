"""Measure whether the time of windows is linear in N, and the time of dense masks, for all schemes.

    python benchmarks/windows.py --out windows.jsonl                      # on a GPU: triton
    python benchmarks/windows.py --out windows.jsonl --device cpu --lengths 1024 2048 4096 8192 --window 64 64 \\
        --batch-size 1 --heads 2 --head-dim 32 --dtype float32            # on a CPU: blockwise
    python benchmarks/windows.py --out windows.jsonl --table              # print what was measured

A row is a scheme: the forward and backward pass with all parameters trained. The row of windows has a time for each
length; the row of masks has the times without a mask, with a mask that excludes single pairs but no whole tile, and
with a mask of documents, which excludes whole tiles. The times of a row are medians of interleaved rounds. On a GPU,
the kernels alone are timed, too: short calls are limited by Python. Each time is a line of JSON. A row whose lines
exist is not measured again, so that an interrupted benchmark can be resumed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.attention import attend
from headwise.attention.schemes import SCHEMES, make_scheme
from headwise.bench import measure

#: Options of schemes, besides heads and head_dim.
SCHEME_OPTIONS: dict[str, dict[str, Any]] = {"rpr": {"k": 16}, "alibi": {"learned": True}}

#: A mask of documents excludes all pairs of tokens of two documents; this many documents have the same length.
NUM_DOCUMENTS = 8

NO_MASK, FULL_TILES, EMPTY_TILES = MASKS = ("no mask", "mask without empty tiles", "mask of documents")


def main() -> None:
    arguments = parse_arguments()
    if not arguments.table:
        device = torch.device(arguments.device)
        name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        print(f"{name}, torch {torch.__version__}", flush=True)
        measure_rows(arguments, device)
    print(build_tables(read(arguments.out)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the results, a line of JSON each")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", help="default: triton on a GPU, blockwise on a CPU")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), metavar="NAME")
    parser.add_argument("--rows", nargs="+", choices=("windows", "masks"), default=["windows", "masks"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 2048, 8192, 16384], help="the first is 1×")
    parser.add_argument("--window", type=int, nargs=2, default=[256, 256], metavar=("LEFT", "RIGHT"))
    parser.add_argument("--mask-length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--repeats", type=int, default=9, help="timed rounds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    return parser.parse_args()


def measure_rows(arguments: argparse.Namespace, device: torch.device) -> None:
    """Measure the rows that have no lines yet."""
    done = {(x["row"], x["scheme"]) for x in read(arguments.out)}
    end = time.monotonic() + arguments.seconds
    for row in arguments.rows:
        for scheme in arguments.schemes:
            if (row, scheme) in done:
                continue
            if time.monotonic() > end:
                print(f"stopped after {arguments.seconds:g} s; run the same command again to continue", flush=True)
                return
            lines = measure_row(row, scheme, arguments, device)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            times = ", ".join(f"{x['case']}: {x['note'] or format_ms(x['ms'])}" for x in lines)
            print(f"{row}, {scheme}: {times}", flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()


def measure_row(row: str, scheme: str, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Return the lines of a row: a time for each length, or for each mask."""
    calls: dict[str, Callable[[], object]] = {}
    notes: dict[str, str] = {}
    cases = MASKS if row == "masks" else tuple(map(str, arguments.lengths))
    for case in cases:
        try:
            if row == "masks":
                options = {"mask": build_mask(case, arguments.mask_length, device)}
                call = build_call(scheme, arguments.mask_length, arguments, device, options)
            else:
                call = build_call(scheme, int(case), arguments, device, {"window": tuple(arguments.window)})
            call()
            calls[case] = call
        except Exception as error:
            notes[case] = measure.shorten_error(error)
    samples = measure.time_interleaved(calls, arguments.repeats, device)
    is_cuda = device.type == "cuda"
    kernels = {case: measure.cuda_kernel_ms(call, device) for case, call in calls.items()} if is_cuda else {}
    return [
        {
            "row": row,
            "scheme": scheme,
            "case": case,
            "ms": 1000 * statistics.median(samples[case]) if case in samples else None,
            "ratio": median_ratio(samples, case, cases[0]),
            "kernel_ms": kernels.get(case),
            "note": notes.get(case, ""),
        }
        for case in cases
    ]


def median_ratio(samples: dict[str, list[float]], case: str, first: str) -> float | None:
    """Return the median over the rounds of a case's time divided by the first case's."""
    if not {case, first} <= samples.keys():
        return None
    return statistics.median(x / y for x, y in zip(samples[case], samples[first], strict=True))


def build_mask(name: str, length: int, device: torch.device) -> Tensor | None:
    """Return a mask (N, N), True where attention is allowed."""
    if name == NO_MASK:
        return None
    if name == FULL_TILES:  # every eighth key is excluded, another one for each query
        positions = torch.arange(length, device=device)
        return (positions[:, None] + positions) % 8 != 0
    documents = torch.arange(length, device=device) * NUM_DOCUMENTS // length
    return documents[:, None] == documents


def build_call(
    scheme_name: str, length: int, arguments: argparse.Namespace, device: torch.device, options: dict[str, Any]
) -> Callable[[], object]:
    """Return a function that runs the forward and the backward pass."""
    torch.manual_seed(0)
    sizes = {"heads": arguments.heads, "head_dim": arguments.head_dim}
    scheme = make_scheme(SCHEMES[scheme_name], **sizes, **SCHEME_OPTIONS.get(scheme_name, {})).to(device)
    shape = (arguments.batch_size, arguments.heads, length, arguments.head_dim)
    q, k, v, gradient = (torch.randn(shape, device=device, dtype=getattr(torch, arguments.dtype)) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)] + [p for p in scheme.parameters() if p.requires_grad]
    backend: Any = arguments.backend or ("triton" if device.type == "cuda" else "blockwise")

    def call() -> object:
        output = attend(q, k, v, scheme=scheme, backend=backend, **options)
        return torch.autograd.grad(output, leaves, gradient)

    return call


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def build_tables(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table for windows and one for masks: times as multiples of the first column's."""
    tables = []
    for row in dict.fromkeys(x["row"] for x in lines):
        cases = list(dict.fromkeys(x["case"] for x in lines if x["row"] == row))
        headings = cases if row == "masks" else [f"N = {int(case):,}" for case in cases]
        table = [f"| {row} | {' | '.join(headings)} |", f"|---|{'---|' * len(cases)}"]
        for scheme in dict.fromkeys(x["scheme"] for x in lines if x["row"] == row):
            found = {x["case"]: x for x in lines if (x["row"], x["scheme"]) == (row, scheme)}
            table.append(f"| {scheme} | {' | '.join(format_cell(found.get(case)) for case in cases)} |")
        tables.append("\n".join(table))
    return "\n\n".join(tables)


def format_cell(line: dict[str, Any] | None) -> str:
    if line is None:
        return "–"
    if line["ms"] is None:
        return str(line["note"])
    kernels = f", kernels {format_ms(line['kernel_ms'])}" if line["kernel_ms"] else ""
    ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}×, "
    return f"{ratio}{format_ms(line['ms'])}{kernels}"


def format_ms(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


if __name__ == "__main__":
    main()
