"""Benchmark of jobs in parts: throughput by the number of processes, memory by the size of the data.

    python benchmarks/parts.py throughput --run runs/reviews --data reviews.csv --processes 1 2 4 --out DIR
    python benchmarks/parts.py memory --titles ag_news/test.csv --impressions 25000 250000 --out DIR
    python benchmarks/parts.py large --titles ag_news/test.csv --impressions 15000000 --users 1000000 --out DIR

`throughput` predicts the texts of a file, repeated up to a number of rows. It reports rows per second of wall time and
CPU seconds per 1,000 rows: if the latter is constant, processes do not hinder each other, whatever else runs on the
machine. `memory` evaluates a small recommender on the training splits of simulated click logs of several sizes and
reports the peak of the process's own memory, without memory-mapped files, which the operating system can evict.
`large` simulates one log and evaluates all its splits with several processes. It reports the peak in both halves of
each command. Finished steps are stored in DIR/steps.json and not repeated. An evaluation that was stopped continues.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.tasks.formats import read_head

HEADWISE = (sys.executable, "-m", "headwise")
#: The options of a small recommender.
TRAINING = (
    *("--task", "mind", "--epochs", 0.05, "--model", "none"),
    *("--heads", 2, "--head-dim", 8, "--word-dim", 16),
)
#: Seconds between two samples of memory.
INTERVAL = 0.05


class MemoryMonitor:
    """Samples the own memory of a process and of its children."""

    def __init__(self, process: int) -> None:
        self.process, self.samples, self.stopped = process, [0.0], threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self) -> None:
        while not self.stopped.wait(INTERVAL):
            self.samples.append(own_memory(self.process))

    def stop(self) -> tuple[float, float]:
        """Stop sampling and return the peaks in both halves of the time, in MB."""
        self.stopped.set()
        self.thread.join()
        half = len(self.samples) // 2
        return max(self.samples[:half], default=0.0), max(self.samples[half:])


def own_memory(process: int) -> float:
    """Return the largest anonymous memory of a process or of one of its children, in MB."""
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    own = next((int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon")), 0.0)
    return max([own, *(own_memory(int(child)) for child in children)])


class Usage(NamedTuple):
    """What a command took.

    Args:
        seconds: The wall time.
        cpu_seconds: The CPU time, with that of its children.
        peaks: The peak memory of a process in both halves of the time, in MB.
    """

    seconds: float
    cpu_seconds: float
    peaks: tuple[float, float]


def run_headwise(*arguments: object) -> Usage:
    """Run a command and return what it took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen([*HEADWISE, *map(str, arguments)], stdout=subprocess.DEVNULL)
    monitor = MemoryMonitor(process.pid)
    code = process.wait()
    peaks = monitor.stop()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise SystemExit(f"headwise {' '.join(map(str, arguments))}: exit code {code}")
    return Usage(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peaks)


def measure_throughput(arguments: argparse.Namespace) -> list[str]:
    """Return a table of rows per second by the number of processes."""
    head = read_head(arguments.data)
    column = next(iter(head.columns)) if arguments.text is None else arguments.text
    texts = [str(text) for text in head.columns[column]]
    repeated = [texts[index % len(texts)] for index in range(arguments.rows)]
    most, part_rows = max(arguments.processes), arguments.part_rows
    data, few = arguments.out / "texts.parquet", arguments.out / "few.parquet"
    pq.write_table(pa.table({"text": repeated}), data, row_group_size=part_rows)
    pq.write_table(pa.table({"text": repeated[:most]}), few, row_group_size=1)  # a part for each process
    starts: dict[int, list[Usage]] = {processes: [] for processes in arguments.processes}
    usages: dict[int, list[Usage]] = {processes: [] for processes in arguments.processes}
    for round_number in range(arguments.rounds):
        for processes in arguments.processes:
            for measured, file, rows in ((starts, few, 1), (usages, data, part_rows)):
                usage = run_headwise(
                    *("predict", arguments.run, file, "--text", "text", "--out", arguments.out / "labelled.parquet"),
                    *("--force", "--quiet", "--processes", processes, "--part-rows", rows),
                )
                measured[processes].append(usage)
                print(f"round {round_number + 1}, {file.stem}, {processes} processes: {usage}", flush=True)
    num_rows = arguments.rows - most
    lines = [
        f"{arguments.rows:,} rows in parts of {part_rows:,}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the end. Medians over {arguments.rounds} rounds, each with all numbers of "
        f"processes. A command with {most} rows is the start; the other columns are without it.",
        "",
        "| processes | start, CPU seconds | rows per second | ratio to the first line | CPU seconds per 1,000 rows | "
        "peak memory of a process, MB |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    first: list[float] = []
    for processes in arguments.processes:
        pairs = list(zip(starts[processes], usages[processes], strict=True))
        rates = [num_rows / (usage.seconds - start.seconds) for start, usage in pairs]
        first = first or rates
        ratio = median(rate / base for rate, base in zip(rates, first, strict=True))
        cpu = median(1000 * (usage.cpu_seconds - start.cpu_seconds) / num_rows for start, usage in pairs)
        start_cpu, peak = median(start.cpu_seconds for start, _ in pairs), max(max(usage.peaks) for _, usage in pairs)
        lines.append(
            f"| {processes} | {start_cpu:.1f} | {median(rates):,.0f} | {ratio:.2f} | {cpu:.2f} | {peak:,.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


def measure_memory(arguments: argparse.Namespace) -> list[str]:
    """Return a table of the memory of an evaluation by the number of impressions."""
    run = arguments.out / "run"
    lines = [
        f"Parts of {arguments.part_rows:,} impressions. Peak memory without memory-mapped files.",
        "",
        "| impressions | log, bytes per impression | impressions per CPU second | peak memory, MB |",
        "|--:|--:|--:|--:|",
    ]
    for size in sorted(arguments.impressions):
        log = arguments.out / f"log-{size}"
        if not log.exists():
            run_headwise("simulate", "mind", "--titles", arguments.titles, "--impressions", size, "--out", log)
        if not run.exists():
            run_headwise("train", "--data", log, *TRAINING, "--out", run)
        num_impressions = size - 2 * (size // 10)
        num_bytes = (log / "train" / "behaviors.tsv").stat().st_size / num_impressions
        evaluate = ("evaluate", run, "--data", log / "train", "--part-rows", arguments.part_rows)
        run_headwise(*evaluate)  # parses the log
        _, cpu_seconds, peaks = run_headwise(*evaluate)
        rate = num_impressions / cpu_seconds
        lines.append(f"| {num_impressions:,} | {num_bytes:,.0f} | {rate:,.0f} | {max(peaks):,.0f} |")
        print(lines[-1], flush=True)
    return lines


def measure_large(arguments: argparse.Namespace) -> list[str]:
    """Return a table of the time and memory of a simulation and of the evaluation of its splits."""
    out, size, stored = arguments.out, arguments.impressions, arguments.out / "steps.json"
    small, run, log = out / "small", out / "run", out / "log"
    if not run.exists():
        if not small.exists():
            run_headwise("simulate", "mind", "--titles", arguments.titles, "--out", small)
        run_headwise("train", "--data", small, *TRAINING, "--out", run)
    held_out = size // 10
    simulate = ("simulate", "mind", "--titles", arguments.titles, "--impressions", size, "--users", arguments.users)
    evaluate = ("evaluate", run, "--processes", arguments.processes, "--part-rows", arguments.part_rows, "--resume")
    steps = {
        "simulate": (size, (*simulate, "--out", log)),
        "read and evaluate dev": (held_out, (*evaluate, "--data", log / "dev", "--out", out / "dev.json")),
        "read all splits, evaluate test": (held_out, (*evaluate, "--data", log, "--out", out / "test.json")),
        "read and evaluate train": (
            size - 2 * held_out,
            (*evaluate, "--data", log / "train", "--out", out / "train.json"),
        ),
    }
    usages = json.loads(stored.read_text()) if stored.exists() else {}
    lines = [
        f"{os.cpu_count()} cores, which other processes used too. Evaluation with {arguments.processes} processes and "
        f"parts of {arguments.part_rows:,} impressions. Peak memory of a process without memory-mapped files.",
        "",
        "| step | impressions | minutes | CPU minutes | impressions per CPU second | peak memory in the first half "
        "of the time, MB | in the second half, MB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (num_impressions, command) in steps.items():
        if name not in usages:
            usages[name] = run_headwise(*command)
            stored.write_text(json.dumps(usages, indent=2))
        seconds, cpu_seconds, (first, second) = usages[name]
        lines.append(
            f"| {name} | {num_impressions:,} | {seconds / 60:.1f} | {cpu_seconds / 60:.1f} | "
            f"{num_impressions / cpu_seconds:,.0f} | {first:,.0f} | {second:,.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    throughput = commands.add_parser("throughput")
    throughput.add_argument("--run", type=Path, required=True, help="directory of a finished run")
    throughput.add_argument("--data", type=Path, required=True, help="file of texts")
    throughput.add_argument("--text", help="the text column (default: the first)")
    throughput.add_argument("--rows", type=int, default=100_000)
    throughput.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    throughput.add_argument("--rounds", type=int, default=3)
    memory = commands.add_parser("memory")
    memory.add_argument("--titles", type=Path, required=True, help="file of titles with topics")
    memory.add_argument("--impressions", type=int, nargs="+", default=[25_000, 250_000])
    large = commands.add_parser("large")
    large.add_argument("--titles", type=Path, required=True, help="file of titles with topics")
    large.add_argument("--impressions", type=int, default=15_000_000)
    large.add_argument("--users", type=int, default=1_000_000)
    large.add_argument("--processes", type=int, default=os.cpu_count())
    for command, part_rows in ((throughput, 10_000), (memory, 2**17), (large, 2**17)):
        command.add_argument("--part-rows", type=int, default=part_rows)
        command.add_argument("--out", type=Path, required=True, help="directory for results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measure = {"throughput": measure_throughput, "memory": measure_memory, "large": measure_large}
    lines = measure[arguments.command](arguments)
    (arguments.out / f"{arguments.command}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
