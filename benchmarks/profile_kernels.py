"""Measure the time of each GPU kernel of `headwise.attend`, and of torch's SDPA, forward and backward.

    python benchmarks/profile_kernels.py --out profile.jsonl
    python benchmarks/profile_kernels.py --out profile.jsonl --schemes rpr tener --shapes "B64 H12 N256 d64" --label new
    python benchmarks/profile_kernels.py --out tiny.jsonl --device cpu --tiny   # checks the command, with CPU operators
    python benchmarks/profile_kernels.py --out profile.jsonl --table            # print what was measured

Shapes are those of `benchmarks/attention_rows.py`, in bfloat16 with all parameters trained. All schemes of a shape and
SDPA, with its fastest kernel, run in turns. Times are medians over the repetitions, in microseconds, by torch's
profiler; a kernel that runs several times in a pass counts with its sum. Each kernel is a line of JSON. A scheme whose
lines exist is not measured again, so that an interrupted benchmark can be resumed.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attention_rows import ALL, LONG, SHORT, read
from torch.profiler import ProfilerActivity, profile

from headwise.bench import measure
from headwise.bench.attention import (
    BASELINE,
    AttentionBenchConfig,
    Case,
    build_forward,
    build_scheme,
    make_tensors,
)

TINY = {"batch": 1, "heads": 4, "key_heads": 2, "head_dim": 8, "lengths": (16,)}
SHAPES: dict[str, dict[str, Any]] = SHORT | LONG | {"tiny": TINY}
DEFAULT_SHAPES = ("B4 H16 N4096 d64", "B2 H16/4 N4096 d128")
PASSES = ("forward", "backward")

#: Runs the forward or the backward pass within a profiler, and returns the time of each kernel in microseconds.
Profile = Callable[[str], dict[str, float]]


def main() -> None:
    arguments = parse_arguments()
    if not arguments.table:
        is_cuda = arguments.device == "cuda"
        print(f"{torch.cuda.get_device_name() if is_cuda else 'CPU'}, torch {torch.__version__}", flush=True)
        measure_shapes(arguments)
    print(build_tables(read(arguments.out)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results, a line of JSON each")
    parser.add_argument("--schemes", nargs="+", choices=ALL, default=ALL, metavar="NAME")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=DEFAULT_SHAPES, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=9, help="repetitions of each pass (default: 9)")
    parser.add_argument("--label", default="", help="what is special about this run, for the table")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="only a tiny shape, to check the command")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no shape after this time")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.shapes = ["tiny"]
    return arguments


def measure_shapes(arguments: argparse.Namespace) -> None:
    """Measure the schemes that have no lines yet, shape by shape."""
    end = time.monotonic() + arguments.seconds
    done = {(x["shape"], x["label"], x["scheme"]) for x in read(arguments.out)}
    for shape in arguments.shapes:
        schemes = [scheme for scheme in arguments.schemes if (shape, arguments.label, scheme) not in done]
        if not schemes:
            continue
        if time.monotonic() > end:
            print(f"stopped after {arguments.seconds:g} s; run the same command again to continue", flush=True)
            return
        lines = measure_shape(shape, schemes, arguments)
        if (shape, arguments.label, BASELINE) in done:
            lines = [line for line in lines if line["scheme"] != BASELINE]
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        print(f"{shape}: {', '.join(schemes)}", flush=True)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


def measure_shape(shape: str, schemes: list[Any], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the lines of SDPA and of these schemes: the time of each kernel, or a note if there is none."""
    dtype: Any = "bfloat16" if arguments.device == "cuda" else "float32"
    config = AttentionBenchConfig(dtype=dtype, device=arguments.device, **SHAPES[shape])
    implementation = "headwise-triton" if arguments.device == "cuda" else "headwise-reference"
    cases = {BASELINE: Case(config, "plain", BASELINE, config.lengths[0])}
    cases |= {scheme: Case(config, scheme, implementation, config.lengths[0]) for scheme in schemes}
    notes, profiles = {}, {}
    for name, case in cases.items():
        try:
            profiles[name] = build_profile(case)
            for one_pass in 2 * PASSES:  # compiles kernels; cached calls start with the second one
                profiles[name](one_pass)
        except Exception as error:
            profiles.pop(name, None)
            notes[name] = measure.shorten_error(error)
    samples: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.repeats):
        for name, run_profile in profiles.items():
            for one_pass in PASSES:
                samples[name, one_pass].append(run_profile(one_pass))
    lines = []
    for (name, one_pass), repetitions in samples.items():
        for kernel in dict.fromkeys(kernel for times in repetitions for kernel in times):
            microseconds = statistics.median(times.get(kernel, 0.0) for times in repetitions)
            lines.append({"scheme": name, "pass": one_pass, "kernel": kernel, "us": microseconds, "note": ""})
    lines += [{"scheme": name, "pass": "", "kernel": "", "us": None, "note": note} for name, note in notes.items()]
    return [{"shape": shape, "label": arguments.label, **line} for line in lines]


def build_profile(case: Case) -> Profile:
    """Return a function that profiles one pass of an implementation."""
    scheme, device = build_scheme(case), case.config.torch_device
    forward = build_forward(case, scheme)
    q, k, v, d_output, _ = make_tensors(case)
    leaves = [x.requires_grad_() for x in (q, k, v)] + [p for p in scheme.parameters() if p.requires_grad]
    is_cuda = device.type == "cuda"

    def run_profile(one_pass: str) -> dict[str, float]:
        outputs = forward(q, k, v) if one_pass == "backward" else ()
        measure.synchronize(device)
        with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as profiler:
            if one_pass == "backward":
                torch.autograd.grad(outputs, leaves, [d_output.to(outputs[0].dtype)])
            else:
                forward(q, k, v)
            measure.synchronize(device)
        events = profiler.key_averages()
        times = {x.key: float(x.self_device_time_total if is_cuda else x.self_cpu_time_total) for x in events}
        return {kernel: microseconds for kernel, microseconds in times.items() if microseconds > 0.0}

    return run_profile


def build_tables(lines: list[dict[str, Any]]) -> str:
    """Return a Markdown table for each shape: a row for each scheme and pass with the sum and its kernels."""
    tables = []
    for shape in dict.fromkeys(x["shape"] for x in lines):
        table = [f"| {shape} | pass | sum, µs | to SDPA | kernels, µs |", "|---|---|--:|--:|---|"]
        rows: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
        for x in lines:
            if x["shape"] == shape:
                rows[x["label"], x["scheme"], x["pass"]].append(x)
        for (label, scheme, one_pass), kernels in rows.items():
            name = ", ".join(filter(None, (scheme, label)))
            if kernels[0]["us"] is None:
                table.append(f"| {name} | – | – | – | {kernels[0]['note']} |")
                continue
            total = sum(x["us"] for x in kernels)
            baseline = sum(x["us"] for x in rows.get((label, BASELINE, one_pass), []))
            ratio = f"{total / baseline:.2f}" if baseline else "–"
            parts = [f"{shorten(x['kernel'])} {x['us']:,.0f}" for x in sorted(kernels, key=lambda x: -x["us"])]
            table.append(f"| {name} | {one_pass} | {total:,.0f} | {ratio} | {', '.join(parts)} |")
        tables.append("\n".join(table))
    return "\n\n".join(tables)


def shorten(kernel: str) -> str:
    """Return the name of a kernel without template arguments, at most 40 characters."""
    return kernel.removeprefix("void ").partition("<")[0].partition("(")[0].replace("|", "/").strip()[:40]


if __name__ == "__main__":
    main()
