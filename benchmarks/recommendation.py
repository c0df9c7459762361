"""Benchmark of position schemes in news recommendation, on simulated click logs with a known best possible AUC.

    python benchmarks/recommendation.py table --titles ag_news/test.csv --vectors glove.npz --out DIR --jobs 12
    python benchmarks/recommendation.py scale --titles ag_news/test.csv --out DIR --sizes 10000 100000

`table` trains the methods of table 5 of the distance-aware paper, schemes with and without recency on a log of users
with drifting interests, and distance-aware models on logs with and without bursts. Existing runs are not repeated. It
writes `recommendation.md` and `distances.png`, the paper's figure 7. `scale` measures reading, training and evaluation
of logs of several sizes, and the metrics of 500,000 impressions.
"""

import argparse
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from headwise.attention import DistanceAware
from headwise.inspection import draw_distances
from headwise.inspection.style import save_figure
from headwise.models import (
    HeadwiseConfig,
    HeadwiseForRecommendation,
    RecommenderConfig,
    build_tokenizer,
    initialize_by_name,
)
from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.tasks import mind
from headwise.tasks.metrics.clicks import METRICS, compute
from headwise.training import train
from headwise.training.core.batches import EpochDataLoader
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.recommendation.batches import (
    ClickDataset,
    EpochBatchSampler,
    find_training_impressions,
    unwrap_batch,
)
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.ranking import score_by_model, sum_metrics
from headwise.training.recommendation.titles import tokenize_titles

#: Options of the simulator for each log.
LOGS: dict[str, dict[str, Any]] = {
    "default": {},
    "drift": {"drift": 2.0, "interest": 0.5, "bursts": 0.0},
    "bursts": {"interest": 0.3, "drift": 0.0, "bursts": 1.0},
    "long-term": {"drift": 0.0, "bursts": 0.0},
}
SCHEMES = ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")
DISTANCE_AWARE: dict[str, Any] = {"model": "distance-aware"}

#: The methods of each log, with their options.
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {scheme: {"model": scheme} for scheme in SCHEMES},
    "drift": {
        "none": {"model": "none"},
        "distance-aware": DISTANCE_AWARE,
        "rpr": {"model": "rpr"},
        "distance-aware, causal": DISTANCE_AWARE | {"causal": True},
        "distance-aware, recent pooling": DISTANCE_AWARE | {"pooling": "recent"},
        "distance-aware, last click": DISTANCE_AWARE | {"pooling": "last"},
    },
    "bursts": {"distance-aware": DISTANCE_AWARE},
    "long-term": {"distance-aware": DISTANCE_AWARE},
}
DESCRIPTIONS = {
    "default": "Table 5 of the paper: long-term interests, some drift, a quarter of the users with bursts.",
    "drift": "Strong drift: only the latest clicks predict the next one.",
    "bursts": "All users click in bursts of one topic.",
    "long-term": "Long-term interests only.",
}
#: Steps that `scale` measures.
SCALE_STEPS = ("simulate", "parse", "collate", "train", "evaluate")
#: Training steps before the measurement starts.
WARMUP_STEPS = 2
MAX_HISTORY = 50


def prepare_log(args: argparse.Namespace, name: str) -> None:
    """Simulate a log, if it does not exist, and parse it into the cache."""
    directory = args.out / "logs" / name
    if not directory.exists():
        simulate(SimulationConfig(titles=args.titles, impressions=args.impressions, **LOGS[name]), directory)
    mind.read(directory)


def run(args: argparse.Namespace, name: str, method: str, seed: int) -> None:
    """Train a method on a log. The output is written to a log file next to the run directory."""
    torch.set_num_threads(1)
    run_dir = args.out / "runs" / name / method / str(seed)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    config = RecommendationConfig(
        task="mind",
        data=(str(args.out / "logs" / name),),
        vectors=args.vectors,
        heads=args.heads,
        head_dim=args.head_dim,
        epochs=args.epochs,
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        title_length=args.title_length,
        seed=seed,
        **METHODS[name][method],
    )
    with run_dir.with_suffix(".log").open("w") as log, redirect_stderr(log), redirect_stdout(log):
        train(config, run_dir, force=run_dir.exists())


def pending_jobs(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield log, method and seed of the runs that do not exist yet, seed by seed."""
    for seed in range(args.seeds):
        for name in args.logs:
            if name == "default" or seed < args.other_seeds:
                for method in METHODS[name].keys() & args.methods if args.methods else METHODS[name]:
                    if not (args.out / "runs" / name / method / str(seed) / "metrics.json").exists():
                        yield name, method, seed


def run_before(deadline: float, args: argparse.Namespace, *job: Any) -> bool:
    """Start a run, or return False after the deadline."""
    if time.time() > deadline:
        return False
    run(args, *job)
    return True


def run_table(args: argparse.Namespace) -> None:
    """Train all methods and write the report."""
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start = time.perf_counter()
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(prepare_log, args), args.logs))
        print(f"prepared the logs in {time.perf_counter() - start:.0f} s", flush=True)
        jobs = list(pending_jobs(args))
        futures = {pool.submit(run_before, time.time() + args.seconds, args, *job): job for job in jobs}
        for count, future in enumerate(as_completed(futures), start=1):
            status = "finished" if future.result() else "not started"
            print(f"{count}/{len(jobs)} {time.perf_counter() - start:.0f} s {futures[future]} {status}", flush=True)
    text = "\n".join(build_section(args, name) for name in args.logs)
    (args.out / "recommendation.md").write_text(text)
    print(text)
    draw_learned_distances(args)


def load_metrics(args: argparse.Namespace, name: str, method: str) -> dict[int, dict[str, Any]]:
    """Return the contents of `metrics.json` by seed."""
    directory = args.out / "runs" / name / method
    return {int(path.parent.name): json.loads(path.read_text()) for path in sorted(directory.glob("*/metrics.json"))}


def build_section(args: argparse.Namespace, name: str) -> str:
    """Return the table of a log: mean ± standard deviation over seeds, and the position between 0.5 and the oracle."""
    runs = {method: load_metrics(args, name, method) for method in METHODS[name]}
    runs = {method: seeds for method, seeds in runs.items() if seeds}
    if not runs:
        return ""
    baselines = next(iter(next(iter(runs.values())).values()))["baselines"]["test"]
    oracle_auc = baselines["oracle"]["auc"]
    rows = [
        f"## {name}\n\n{DESCRIPTIONS[name]}\n",
        "| | seeds | " + " | ".join(METRICS) + " | share of the oracle's gain | AUC − none, p |",
    ]
    rows.append("|---|---|" + "---|" * (len(METRICS) + 2))
    for baseline, baseline_metrics in baselines.items():
        cells = [f"{baseline_metrics[metric]:.4f}" for metric in METRICS]
        rows.append(f"| {baseline} | | {' | '.join(cells)} | {format_share(baseline_metrics['auc'], oracle_auc)} | |")
    for method, seeds in runs.items():
        values = {metric: [result["metrics"]["test"][metric] for result in seeds.values()] for metric in METRICS}
        cells = [f"{np.mean(x):.4f} ± {np.std(x, ddof=1) if len(x) > 1 else 0:.4f}" for x in values.values()]
        share = format_share(float(np.mean(values["auc"])), oracle_auc)
        difference = format_difference(seeds, runs.get("none", {})) if method != "none" else ""
        rows.append(f"| {method} | {len(seeds)} | {' | '.join(cells)} | {share} | {difference} |")
    seconds = [result["train_seconds"] for seeds in runs.values() for result in seeds.values()]
    rows.append(f"\nMean training time: {np.mean(seconds):.0f} s, with {args.jobs} runs at a time.")
    if any("distance-aware" in method for method in runs):
        rows.append(f"\n{describe_learned_distances(args, name)}")
    return "\n".join(rows) + "\n"


def format_share(auc: float, oracle_auc: float) -> str:
    """Return the position of an AUC between 0.5 (0 %) and the oracle's (100 %)."""
    return f"{100 * (auc - 0.5) / (oracle_auc - 0.5):.0f} %"


def format_difference(results: dict[int, Any], control: dict[int, Any]) -> str:
    """Return the mean difference in AUC from the control, and the p-value of the paired t-test."""
    seeds = sorted(results.keys() & control.keys())
    if len(seeds) < 2:
        return ""
    differences = [results[s]["metrics"]["test"]["auc"] - control[s]["metrics"]["test"]["auc"] for s in seeds]
    return f"{np.mean(differences):+.4f}, {stats.ttest_1samp(differences, 0.0).pvalue:.3f}"


def load_schemes(args: argparse.Namespace, name: str) -> list[tuple[DistanceAware, DistanceAware]]:
    """Return the initial and the trained scheme over clicked news, for each distance-aware model."""
    schemes = []
    for seed in load_metrics(args, name, "distance-aware"):
        with quiet_libraries():
            trained: Any = HeadwiseForRecommendation.from_pretrained(
                args.out / "runs" / name / "distance-aware" / str(seed)
            )
        initial: Any = HeadwiseForRecommendation(trained.config)
        initialize_by_name(initial, seed)
        schemes.append(tuple(model.clicks.layers[0].attention.scheme for model in (initial, trained)))
    return schemes


def describe_learned_distances(args: argparse.Namespace, name: str) -> str:
    """Return a sentence on the learned w of the heads over clicked news."""
    pairs = [
        (trained.w.detach().numpy(), (trained.w - initial.w).detach().numpy())
        for initial, trained in load_schemes(args, name)
    ]
    if not pairs:
        return ""
    w, change = (np.concatenate(x) for x in zip(*pairs, strict=True))
    change_by_seed = ", ".join(f"{x.mean():+.3f}" for _, x in pairs)
    negative, decreased = (f"{100 * (x < 0).mean():.0f} % of heads" for x in (w, change))
    return (
        f"w of distance-aware attention over clicked news: mean {w.mean():+.3f}, negative for {negative}. Training "
        f"changed it by {change.mean():+.3f} on average (by seed {change_by_seed}) and decreased it for {decreased}."
    )


def draw_learned_distances(args: argparse.Namespace) -> None:
    """Draw w and v of the heads over clicked news for each log (figure 7), first seed, sorted by w."""
    schemes = {name: pairs[0][1] for name in args.logs if (pairs := load_schemes(args, name))}
    for scheme in schemes.values():
        order = scheme.w.detach().argsort()
        assert scheme.v is not None
        scheme.w.data, scheme.v.data = scheme.w.data[order], scheme.v.data[order]
    if schemes:
        figure = draw_distances(list(schemes.values()), names=list(schemes), max_distance=MAX_HISTORY)
        save_figure(figure, args.out / "distances.png")


class MemoryMonitor:
    """Measures the peak of this process's own memory in MB, without memory-mapped files."""

    def __init__(self) -> None:
        self.peak_mb, self.stopped = 0.0, threading.Event()
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def poll(self) -> None:
        while not self.stopped.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            anonymous = next(line for line in lines if line.startswith("RssAnon"))
            self.peak_mb = max(self.peak_mb, int(anonymous.split()[1]) / 1024)

    def stop(self) -> float:
        self.stopped.set()
        self.thread.join()
        return self.peak_mb


def measure_step(args: argparse.Namespace, size: int, step: str) -> dict[str, float]:
    """Measure one step on one log, in a new process: impressions per second and peak memory."""
    torch.set_num_threads(args.threads)
    directory, cache = args.out / "logs" / str(size), args.out / "cache" / str(size)
    num_impressions, monitor, start = size, MemoryMonitor(), time.perf_counter()
    if step == "simulate":
        if not directory.exists():
            simulate(SimulationConfig(titles=args.titles, impressions=size, users=max(size // 10, 1000)), directory)
    elif step == "parse":
        mind.read(directory, cache=cache)
    else:
        num_impressions, start = run_step(args, mind.read(directory, cache=cache), step)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"per second": num_impressions / seconds, "own MB": monitor.stop(), "with mapped files MB": peak}


def run_step(args: argparse.Namespace, log: mind.Log, step: str) -> tuple[int, float]:
    """Collate batches, train for some steps, or evaluate test. Return the number of impressions and the start time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = log.splits["train"]
    impressions = find_training_impressions(split, len(log.news))
    tokenizer = build_tokenizer(log.news.data["title"][:])
    titles = tokenize_titles(tokenizer, log.news.data, args.title_length)
    sizes: dict[str, Any] = {"heads": args.heads, "head_dim": args.head_dim}
    title_config = HeadwiseConfig(vocab_size=len(tokenizer), word_dim=100, **sizes)
    model: Any = HeadwiseForRecommendation(RecommenderConfig(titles=title_config, **sizes))
    model = model.to(device)
    autocast = partial(torch.autocast, device, torch.bfloat16, enabled=device == "cuda")
    if step == "evaluate":
        start = time.perf_counter()
        sum_metrics(score_by_model(model, log.splits["test"], titles, history=MAX_HISTORY, precision=autocast))
        return len(log.splits["test"]), start
    dataset = ClickDataset(split, impressions.rows, titles, history=MAX_HISTORY, negatives=4, seed=0)
    sampler: Any = EpochBatchSampler(np.minimum(impressions.history_lengths, MAX_HISTORY), args.batch_size, seed=0)
    if step == "collate":
        batches = [next(iter(batch)) for _, batch in zip(range(args.steps), sampler, strict=False)]
        dataset[batches[0]]  # maps the file
        start = time.perf_counter()
        return sum(len(dataset[batch]["history"]) for batch in batches), start
    loader = EpochDataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=unwrap_batch,
        num_workers=int(device == "cuda"),
        pin_memory=device == "cuda",
    )
    return train_steps(model, loader, autocast, args.steps)


def train_steps(model: Any, loader: Any, autocast: Any, num_steps: int) -> tuple[int, float]:
    """Train for some steps. Return the number of impressions and the start time, both without the warm-up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    device = model.device
    num_impressions, start = 0, time.perf_counter()
    for step, batch in enumerate(loader):
        if step == WARMUP_STEPS:
            num_impressions, start = 0, time.perf_counter()
        if step == num_steps + WARMUP_STEPS:
            break
        with autocast():
            loss = model(**{name: x.to(device, non_blocking=True) for name, x in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        num_impressions += len(batch["history"])
    if device.type == "cuda":
        torch.cuda.synchronize()
    return num_impressions, start


def run_scale(args: argparse.Namespace) -> None:
    """Measure all steps for logs of several sizes and write `scale.md`."""
    headers = [f"{step}, per second | own MB | with mapped files" for step in SCALE_STEPS]
    rows = ["| impressions | " + " | ".join(headers) + " |", "|---|" + "---|" * 3 * len(SCALE_STEPS)]
    context = get_context("spawn")
    for size in args.sizes:
        cells = []
        for step in SCALE_STEPS:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                measurement = pool.submit(measure_step, args, size, step).result()
            cells.append(" | ".join(f"{value:,.0f}" for value in measurement.values()))
            print(size, step, {name: round(value) for name, value in measurement.items()}, flush=True)
        rows.append(f"| {size:,} | " + " | ".join(cells) + " |")
    rows.append(f"\n{measure_metrics()}")
    (args.out / "scale.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def measure_metrics(num_impressions: int = 500_000, num_candidates: int = 30) -> str:
    """Return a sentence on the time to compute the metrics."""
    rng = np.random.default_rng(0)
    scores = rng.random(num_impressions * num_candidates, dtype=np.float32)
    clicked = rng.random(len(scores)) < 0.1
    offsets = np.arange(num_impressions + 1) * num_candidates
    start, cpu_start = time.perf_counter(), time.process_time()
    compute(scores, clicked, offsets)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return (
        f"Metrics of {num_impressions:,} impressions with {len(scores):,} candidates took {seconds:.1f} s "
        f"({cpu_seconds:.1f} s of CPU time)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=["table", "scale"])
    parser.add_argument("--titles", required=True, type=Path, help="file of titles and topics, for the simulator")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--vectors", type=Path, help="word vectors")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=list(LOGS))
    parser.add_argument("--methods", nargs="+", help="some of the methods of each log")
    parser.add_argument("--impressions", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--other-seeds", type=int, default=3, help="number of seeds for all logs but the default one")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="time after which no run is started")
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--title-length", type=int, default=16)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=16)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=20, help="number of measured training steps")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    {"table": run_table, "scale": run_scale}[args.benchmark](args)


if __name__ == "__main__":
    main()
