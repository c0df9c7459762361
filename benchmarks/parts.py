"""Benchmark of jobs in parts: throughput by the number of processes, memory by the size of the data.

    python benchmarks/parts.py throughput --run runs/reviews --data reviews.csv --processes 1 2 4 --out DIR
    python benchmarks/parts.py memory --titles ag_news/test.csv --impressions 25000 250000 --out DIR

`throughput` predicts the texts of a file, repeated up to a number of rows. It reports rows per second of wall time and
CPU seconds per 1,000 rows: if the latter is constant, processes do not hinder each other, whatever else runs on the
machine. `memory` evaluates a small recommender on the training splits of simulated click logs of several sizes and
reports the peak of the process's own memory, without memory-mapped files, which the operating system can evict.
"""

import argparse
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headwise.tasks.formats import read_head

HEADWISE = (sys.executable, "-m", "headwise")
#: Seconds between two samples of memory.
INTERVAL = 0.05


class MemoryMonitor:
    """Samples the own memory of a process and of its children."""

    def __init__(self, process: int) -> None:
        self.process, self.peak_mb, self.stopped = process, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self) -> None:
        while not self.stopped.wait(INTERVAL):
            self.peak_mb = max(self.peak_mb, own_memory(self.process))

    def stop(self) -> float:
        """Stop sampling and return the peak in MB."""
        self.stopped.set()
        self.thread.join()
        return self.peak_mb


def own_memory(process: int) -> float:
    """Return the largest anonymous memory of a process or of one of its children, in MB."""
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    own = next((int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon")), 0.0)
    return max([own, *(own_memory(int(child)) for child in children)])


def run_headwise(*arguments: object) -> tuple[float, float, float]:
    """Run a command and return its seconds, its CPU seconds with those of its children, and the peak memory in MB."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen([*HEADWISE, *map(str, arguments)], stdout=subprocess.DEVNULL)
    monitor = MemoryMonitor(process.pid)
    code = process.wait()
    peak = monitor.stop()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        raise SystemExit(f"headwise {' '.join(map(str, arguments))}: exit code {code}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, peak


def measure_throughput(arguments: argparse.Namespace) -> list[str]:
    """Return a table of rows per second by the number of processes."""
    head = read_head(arguments.data)
    column = next(iter(head.columns)) if arguments.text is None else arguments.text
    texts = [str(text) for text in head.columns[column]]
    data = arguments.out / "texts.parquet"
    repeated = [texts[index % len(texts)] for index in range(arguments.rows)]
    pq.write_table(pa.table({"text": repeated}), data, row_group_size=arguments.part_rows)
    lines = [
        f"{arguments.rows:,} rows in parts of {arguments.part_rows:,}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the start. The time includes the start of all processes.",
        "",
        "| processes | rows per second | CPU seconds per 1,000 rows | peak memory of a process, MB |",
        "|--:|--:|--:|--:|",
    ]
    for processes in arguments.processes:
        out = arguments.out / f"labelled-{processes}.parquet"
        seconds, cpu_seconds, peak = run_headwise(
            *("predict", arguments.run, data, "--text", "text", "--out", out, "--force"),
            *("--processes", processes, "--part-rows", arguments.part_rows),
        )
        rate, cpu_rate = arguments.rows / seconds, 1000 * cpu_seconds / arguments.rows
        lines.append(f"| {processes} | {rate:,.0f} | {cpu_rate:.2f} | {peak:,.0f} |")
        print(lines[-1], flush=True)
    return lines


def measure_memory(arguments: argparse.Namespace) -> list[str]:
    """Return a table of the memory of an evaluation by the number of impressions."""
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--model", "none")
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
            run_headwise("train", "--task", "mind", "--data", log, "--epochs", 0.05, *options, "--out", run)
        num_impressions = size - 2 * (size // 10)
        num_bytes = (log / "train" / "behaviors.tsv").stat().st_size / num_impressions
        evaluate = ("evaluate", run, "--data", log / "train", "--part-rows", arguments.part_rows)
        run_headwise(*evaluate)  # parses the log
        _, cpu_seconds, peak = run_headwise(*evaluate)
        lines.append(f"| {num_impressions:,} | {num_bytes:,.0f} | {num_impressions / cpu_seconds:,.0f} | {peak:,.0f} |")
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
    memory = commands.add_parser("memory")
    memory.add_argument("--titles", type=Path, required=True, help="file of titles with topics")
    memory.add_argument("--impressions", type=int, nargs="+", default=[25_000, 250_000])
    for command, part_rows in ((throughput, 10_000), (memory, 2**17)):
        command.add_argument("--part-rows", type=int, default=part_rows)
        command.add_argument("--out", type=Path, required=True, help="directory for results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lines = measure_throughput(arguments) if arguments.command == "throughput" else measure_memory(arguments)
    (arguments.out / f"{arguments.command}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
