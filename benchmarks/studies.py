"""Runs per hour of a study of small runs: one worker, several workers on one GPU, or one command per run.

    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --jobs 12 --out results/studies
    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --jobs 1 --seeds 1 --out results/studies
    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --single-runs 3 --out results/studies

Each call adds a row to `runs_per_hour.csv` and prints all rows, relative to the slowest. `--mps` starts NVIDIA's
Multi-Process Service, with which kernels of several processes run concurrently.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

METHODS = ("none", "plain", "rpr", "tener", "distance-aware")


def main() -> None:
    args = parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with start_mps() if args.mps else nullcontext(), tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        if args.single_runs:
            setup, num_runs = "one command per run", train_single_runs(args, Path(scratch))
        else:
            setup, num_runs = f"compare --jobs {args.jobs}", run_study(args, args.keep or Path(scratch) / "study")
        seconds = time.perf_counter() - start
    setup += ", MPS" if args.mps else ""
    path = args.out / "runs_per_hour.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(["setup", "runs", "seconds", "runs_per_hour"])
        writer.writerow([setup, num_runs, round(seconds, 1), round(3600 * num_runs / seconds, 1)])
    print_rows(path)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data", required=True)
    parser.add_argument("--vectors")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--single-runs", type=int, default=0, help="run `headwise train` this often instead of a study")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--keep", type=Path, help="the study's directory, which is deleted otherwise")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="training options; must come last")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def shared_options(args: argparse.Namespace) -> list[str]:
    vectors = ["--vectors", args.vectors] if args.vectors else []
    return ["--task", args.task, "--data", args.data, *vectors, *args.options]


def run_study(args: argparse.Namespace, out_dir: Path) -> int:
    """Run all methods with all seeds by one command. Return the number of runs."""
    command = ["compare", *shared_options(args), "--methods", *args.methods, "--seeds", str(args.seeds)]
    run_headwise(*command, "--jobs", str(args.jobs), "--out", str(out_dir))
    return len(list(out_dir.glob("runs/*/*/*/metrics.json")))


def train_single_runs(args: argparse.Namespace, out_dir: Path) -> int:
    """Train the first runs of the same study by one command each. Return the number of runs."""
    for number in range(args.single_runs):
        method, seed = args.methods[number % len(args.methods)], number // len(args.methods)
        run_dir = str(out_dir / str(number))
        run_headwise("train", *shared_options(args), "--model", method, "--seed", str(seed), "--out", run_dir)
    return int(args.single_runs)


def run_headwise(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "headwise", *command], check=True)


def print_rows(path: Path) -> None:
    """Print all measurements, relative to the slowest."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    slowest = min(float(row["runs_per_hour"]) for row in rows)
    for row in rows:
        speedup = float(row["runs_per_hour"]) / slowest
        numbers = f"{row['runs']:>4} runs {row['seconds']:>8} s {row['runs_per_hour']:>8} per hour"
        print(f"{row['setup']:<32} {numbers} {speedup:5.1f}×")


@contextmanager
def start_mps() -> Iterator[None]:
    """Run NVIDIA's Multi-Process Service with temporary directories for pipes and logs."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise SystemExit("--mps: nvidia-cuda-mps-control is not on this machine")
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": directory, "CUDA_MPS_LOG_DIRECTORY": directory}
        subprocess.run([control, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", check=False)


if __name__ == "__main__":
    main()
