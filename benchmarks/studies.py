"""How many runs an hour: a study of small runs with one worker, with several on one GPU, and one command a run.

    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --jobs 12 --out results/studies
    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --jobs 1 --seeds 1 --out results/studies
    python benchmarks/studies.py --data data/sst2 --vectors glove.npz --alone 3 --out results/studies

Each call adds a line to `runs_per_hour.csv` and prints all of them, as multiples of the slowest. `--mps` starts
NVIDIA's multi-process service, by which kernels of several processes run at the same time instead of in turns.
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
from contextlib import contextmanager
from pathlib import Path

METHODS = ("none", "plain", "rpr", "tener", "distance-aware")


def main() -> None:
    asked = parsed()
    asked.out.mkdir(parents=True, exist_ok=True)
    with multi_process_service() if asked.mps else nothing(), tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        if asked.alone:
            how, done = "a command for each run", alone(asked, Path(scratch))
        else:
            how, done = f"compare --jobs {asked.jobs}", study(asked, asked.keep or Path(scratch) / "study")
        seconds = time.perf_counter() - start
    how += ", MPS" if asked.mps else ""
    table = asked.out / "runs_per_hour.csv"
    is_new = not table.exists()
    with table.open("a", newline="") as file:
        rows = csv.writer(file)
        if is_new:
            rows.writerow(["how", "runs", "seconds", "runs_per_hour"])
        rows.writerow([how, done, round(seconds, 1), round(3600 * done / seconds, 1)])
    tell(table)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--data", required=True)
    parser.add_argument("--vectors")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--alone", type=int, default=0, help="so many runs by `headwise train`, one after another")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the study, which is thrown away otherwise")
    parser.add_argument("--options", nargs=argparse.REMAINDER, default=[], help="of training; must come last")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def shared(asked: argparse.Namespace) -> list[str]:
    vectors = ["--vectors", asked.vectors] if asked.vectors else []
    return ["--task", asked.task, "--data", asked.data, *vectors, *asked.options]


def study(asked: argparse.Namespace, out: Path) -> int:
    """All methods with all seeds by one command; how many runs that is."""
    command = ["compare", *shared(asked), "--methods", *asked.methods, "--seeds", str(asked.seeds)]
    headwise(*command, "--jobs", str(asked.jobs), "--out", str(out))
    return len(list(out.glob("runs/*/*/*/metrics.json")))


def alone(asked: argparse.Namespace, out: Path) -> int:
    """The first runs of the same study, each by a command of its own."""
    for number in range(asked.alone):
        method, seed = asked.methods[number % len(asked.methods)], number // len(asked.methods)
        headwise("train", *shared(asked), "--model", method, "--seed", str(seed), "--out", str(out / str(number)))
    return int(asked.alone)


def headwise(*command: str) -> None:
    subprocess.run([sys.executable, "-m", "headwise", *command], check=True)


def tell(table: Path) -> None:
    with table.open(newline="") as file:
        found = list(csv.DictReader(file))
    slowest = min(float(row["runs_per_hour"]) for row in found)
    for row in found:
        times = float(row["runs_per_hour"]) / slowest
        taken = f"{row['runs']:>4} runs {row['seconds']:>8} s {row['runs_per_hour']:>8} an hour"
        print(f"{row['how']:<32} {taken} {times:5.1f}×")


@contextmanager
def multi_process_service() -> Iterator[None]:
    """NVIDIA's, with a folder of its own, ended in the end."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise SystemExit("--mps: nvidia-cuda-mps-control is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", check=False)


@contextmanager
def nothing() -> Iterator[None]:
    yield


if __name__ == "__main__":
    main()
