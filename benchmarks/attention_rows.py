"""Measure attention on a GPU at the shapes that users have: short and long texts, grouped heads, decoding.

    python benchmarks/attention_rows.py --out rows.jsonl
    python benchmarks/attention_rows.py --out rows.jsonl --rows B64 "decode 1024" --passes both
    HEADWISE_NATIVE=0 python benchmarks/attention_rows.py --out rows.jsonl --label "without C++"
    python benchmarks/attention_rows.py --out rows.jsonl --table          # print what was measured

Each row is a `headwise bench attention` in bfloat16 with all parameters trained. Times are medians of interleaved
rounds, relative to torch's SDPA with its fastest kernel. Each result is a line of JSON. A result whose line exists is
not measured again, so that an interrupted benchmark can be resumed. `benchmarks/windows.py` measures windows and masks.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from headwise.bench.attention import COMPILED, AttentionBenchConfig, BenchSchemeName, run
from headwise.bench.measure import MEBIBYTE

ALL: tuple[BenchSchemeName, ...] = ("plain", "distance-aware", "rpr", "transformer-xl", "tener")
SHORT: dict[str, dict[str, Any]] = {
    "B64 H12 N256 d64": {"batch": 64, "heads": 12, "lengths": (256,)},
    "B32 H12 N512 d64": {"batch": 32, "heads": 12, "lengths": (512,)},
    "B512 H16 N64 d16": {"batch": 512, "heads": 16, "head_dim": 16, "lengths": (64,)},
}
LONG: dict[str, dict[str, Any]] = {
    "B4 H16 N4096 d64": {"batch": 4, "heads": 16, "lengths": (4096,)},
    "B1 H16 N16384 d64": {"batch": 1, "heads": 16, "lengths": (16384,)},
    "B2 H16/4 N4096 d128": {"batch": 2, "heads": 16, "key_heads": 4, "head_dim": 128, "lengths": (4096,)},
    "B4 H16 N4096 d64 causal": {"batch": 4, "heads": 16, "lengths": (4096,), "causal": True},
}
UNEVEN: dict[str, dict[str, Any]] = {  # lengths that are no multiples of the tiles, as most batches of texts have
    "B32 H12 N500 d64": {"batch": 32, "heads": 12, "lengths": (500,)},
    "B4 H16 N4001 d64": {"batch": 4, "heads": 16, "lengths": (4001,)},
}
DECODING: dict[str, dict[str, Any]] = {
    f"decode {n} keys": {"batch": 16, "heads": 16, "lengths": (n,), "queries": 1} for n in (1024, 16384)
}
PASSES = ("both", "forward")


def list_rows() -> Iterator[tuple[str, str, AttentionBenchConfig]]:
    """Yield name, passes and options of all rows, in order of interest."""
    common: dict[str, Any] = {"dtype": "bfloat16", "device": "cuda", "repeats": 7}
    triton = {"implementations": ("headwise-triton",)}
    for name, shape in (SHORT | LONG).items():
        for passes in PASSES:
            options = common | triton | shape | {"forward_only": passes == "forward"}
            yield name, passes, AttentionBenchConfig(schemes=ALL, **options)
            yield f"{name}, w = 0", passes, AttentionBenchConfig(schemes=("distance-aware",), initial_w=0.0, **options)
    for name, shape in DECODING.items():
        options = common | triton | shape | {"forward_only": True}
        yield name, "forward", AttentionBenchConfig(schemes=ALL[:4], **options)
    for name, shape in UNEVEN.items():
        for passes in PASSES:
            options = common | triton | shape | {"forward_only": passes == "forward"}
            yield name, passes, AttentionBenchConfig(schemes=ALL, **options)
    for name, shape in (SHORT | LONG).items():
        for passes in PASSES:
            options = common | triton | shape | {"forward_only": passes == "forward", "layout": "bnhd"}
            yield f"{name}, bnhd", passes, AttentionBenchConfig(schemes=ALL, **options)
    for name, shape in SHORT.items():
        options = common | shape | {"implementations": (COMPILED,)}
        yield f"{name}, compiled", "both", AttentionBenchConfig(schemes=ALL[:3], **options)


def measure_rows(path: Path, names: list[str], passes: list[str], label: str, seconds: float) -> None:
    """Measure what has no line in the file yet. No row is started after this number of seconds."""
    end = time.monotonic() + seconds
    for part in names:
        if not any(name.startswith(part) for name, *_ in list_rows()):
            raise SystemExit(
                f"--rows: no row starts with {part}; rows: {', '.join(dict.fromkeys(x for x, *_ in list_rows()))}"
            )
    done = {(x["row"], x["passes"], x["label"], x["scheme"]) for x in read(path)}
    for name, one_pass, config in list_rows():
        if (names and not any(name.startswith(part) for part in names)) or one_pass not in passes:
            continue
        schemes = tuple(scheme for scheme in config.schemes if (name, one_pass, label, scheme) not in done)
        if not schemes:
            continue
        if time.monotonic() > end:
            print(f"stopped after {seconds:g} s; run the same command again to continue")
            return
        for result in run(AttentionBenchConfig(**(vars(config) | {"schemes": schemes})), lambda _: None):
            line = {"row": name, "passes": one_pass, "label": label, **asdict(result)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name:28} {one_pass:8} {result.scheme:15} {result.implementation:18} {result.summary}", flush=True)
        torch.cuda.empty_cache()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table: times and memory relative to SDPA; times of the forward pass are in brackets."""
    cells: dict[tuple[str, str, str], dict[str, dict[str, Any]]] = {}
    for x in results:
        if x["implementation"] != "sdpa":
            cells.setdefault((x["row"], x["label"], x["scheme"]), {})[x["passes"]] = x
    sdpa_memory = {
        (x["row"], x["passes"]): x["peak_mib"] for x in results if x["implementation"] == "sdpa" and x["peak_mib"]
    }
    rows = dict.fromkeys((row, label) for row, label, _ in cells)
    lines = [f"| shape | {' | '.join(ALL)} |", f"|---|{'---|' * len(ALL)}"]
    for row, label in rows:
        texts = [format_cell(cells.get((row, label, scheme), {}), sdpa_memory) for scheme in ALL]
        lines.append(f"| {', '.join(filter(None, (row, label)))} | {' | '.join(texts)} |")
    return "\n".join(lines)


def format_cell(passes: dict[str, dict[str, Any]], sdpa_memory: dict[tuple[str, str], float]) -> str:
    parts = []
    if both := passes.get("both"):
        parts.append(both["note"] if both["ratio"] is None else f"{both['ratio']:.2f}")
    if forward := passes.get("forward"):
        parts.append(forward["note"] if forward["ratio"] is None else f"({forward['ratio']:.2f})")
    if both and both["peak_mib"] and (baseline := sdpa_memory.get((both["row"], "both"))):
        parts.append(f"{both['peak_mib'] / baseline:.1f}× memory")
    return " ".join(parts) or "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results, a line of JSON each")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only rows whose names start so")
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES, help="default: both forward")
    parser.add_argument("--label", default="", help="what is special about this run, for the table")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no row after this time")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read(arguments.out)))
        return
    print(f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[1] // MEBIBYTE} MiB, torch {torch.__version__}")
    measure_rows(arguments.out, arguments.rows, list(arguments.passes), arguments.label, arguments.seconds)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
