"""What position schemes are worth to a recommender, on simulated click logs whose best reachable AUC is known.

    python benchmarks/recommendation.py table --titles ag_news/test.csv --vectors glove.npz --out FOLDER --jobs 12
    python benchmarks/recommendation.py scale --titles ag_news/test.csv --out FOLDER --sizes 10000 100000

`table` trains every method of the distance-aware paper's table 5 on a log, schemes that do and do not see recency on
one whose users drift, and distance-aware models of users who click in bursts and of those who do not. A run that is
in the folder is not run again. It writes `recommendation.md` and `distances.png`, the paper's figure 7.
`scale` measures reading, training and evaluation of logs of several sizes, and the metrics of 500,000 impressions.
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
    initialise_by_name,
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

#: Of each log: what differs from the simulator's defaults.
LOGS: dict[str, dict[str, Any]] = {
    "default": {},
    "drift": {"drift": 2.0, "interest": 0.5, "bursts": 0.0},
    "bursts": {"interest": 0.3, "drift": 0.0, "bursts": 1.0},
    "long-term": {"drift": 0.0, "bursts": 0.0},
}
SCHEMES = ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")
DISTANCE: dict[str, Any] = {"model": "distance-aware"}

#: Of each log: its methods, and their settings.
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "default": {scheme: {"model": scheme} for scheme in SCHEMES},
    "drift": {
        "none": {"model": "none"},
        "distance-aware": DISTANCE,
        "rpr": {"model": "rpr"},
        "distance-aware, causal": DISTANCE | {"causal": True},
        "distance-aware, recent pooling": DISTANCE | {"pooling": "recent"},
        "distance-aware, last click": DISTANCE | {"pooling": "last"},
    },
    "bursts": {"distance-aware": DISTANCE},
    "long-term": {"distance-aware": DISTANCE},
}
ABOUT = {
    "default": "Table 5 of the paper: long-term interests, some drift, a quarter of the users in bursts.",
    "drift": "Drift turned up: only the latest clicks tell what comes next.",
    "bursts": "All users click in bursts of one topic.",
    "long-term": "Long-term interests only.",
}


def prepare(given: argparse.Namespace, name: str) -> None:
    """A log, simulated and read once."""
    folder = given.out / "logs" / name
    if not folder.exists():
        simulate(SimulationConfig(titles=given.titles, impressions=given.impressions, **LOGS[name]), folder)
    mind.read(folder)


def run(given: argparse.Namespace, name: str, method: str, seed: int) -> None:
    torch.set_num_threads(1)
    folder = given.out / "runs" / name / method / str(seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = RecommendationConfig(
        task="mind",
        data=(str(given.out / "logs" / name),),
        vectors=given.vectors,
        heads=given.heads,
        head_dim=given.head_dim,
        epochs=given.epochs,
        learning_rate=given.learning_rate,
        batch_size=given.batch_size,
        title_length=given.title_length,
        seed=seed,
        **METHODS[name][method],
    )
    with folder.with_suffix(".log").open("w") as log, redirect_stderr(log), redirect_stdout(log):
        train(settings, folder, force=folder.exists())


def jobs(given: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """What is left to run, the first seeds of all methods first."""
    for seed in range(given.seeds):
        for name in given.logs:
            if name == "default" or seed < given.other_seeds:
                for method in METHODS[name].keys() & given.methods if given.methods else METHODS[name]:
                    if not (given.out / "runs" / name / method / str(seed) / "metrics.json").exists():
                        yield name, method, seed


def limited(latest: float, given: argparse.Namespace, *job: Any) -> bool:
    """A run, unless it is too late to begin one."""
    if time.time() > latest:
        return False
    run(given, *job)
    return True


def table(given: argparse.Namespace) -> None:
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    start = time.perf_counter()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(prepare, given), given.logs))
        print(f"logs are there after {time.perf_counter() - start:.0f} s", flush=True)
        todo = list(jobs(given))
        futures = {pool.submit(limited, time.time() + given.seconds, given, *job): job for job in todo}
        for count, future in enumerate(as_completed(futures), start=1):
            told = "done" if future.result() else "too late"
            print(f"{count}/{len(todo)} {time.perf_counter() - start:.0f} s {futures[future]} {told}", flush=True)
    text = "\n".join(section(given, name) for name in given.logs)
    (given.out / "recommendation.md").write_text(text)
    print(text)
    picture(given)


def finished(given: argparse.Namespace, name: str, method: str) -> dict[int, dict[str, Any]]:
    folder = given.out / "runs" / name / method
    return {int(path.parent.name): json.loads(path.read_text()) for path in sorted(folder.glob("*/metrics.json"))}


def section(given: argparse.Namespace, name: str) -> str:
    """The table of a log: mean and standard deviation over seeds, and the share of the way from 0.5 to the oracle."""
    runs = {method: finished(given, name, method) for method in METHODS[name]}
    runs = {method: found for method, found in runs.items() if found}
    if not runs:
        return ""
    beside = next(iter(next(iter(runs.values())).values()))["baselines"]["test"]
    best = beside["oracle"]["auc"]
    rows = [
        f"## {name}\n\n{ABOUT[name]}\n",
        "| | seeds | " + " | ".join(METRICS) + " | of the way to the oracle | AUC − none, p |",
    ]
    rows.append("|---|---|" + "---|" * (len(METRICS) + 2))
    for rival, found in beside.items():
        cells = [f"{found[metric]:.4f}" for metric in METRICS]
        rows.append(f"| {rival} | | {' | '.join(cells)} | {share(found['auc'], best)} | |")
    for method, seeds in runs.items():
        values = {metric: [one["figures"]["test"][metric] for one in seeds.values()] for metric in METRICS}
        cells = [f"{np.mean(x):.4f} ± {np.std(x, ddof=1) if len(x) > 1 else 0:.4f}" for x in values.values()]
        closed = share(float(np.mean(values["auc"])), best)
        difference = paired(seeds, runs.get("none", {})) if method != "none" else ""
        rows.append(f"| {method} | {len(seeds)} | {' | '.join(cells)} | {closed} | {difference} |")
    seconds = [one["seconds"] for seeds in runs.values() for one in seeds.values()]
    rows.append(f"\nA run took {np.mean(seconds):.0f} s, {given.jobs} at a time.")
    if any("distance-aware" in method for method in runs):
        rows.append(f"\n{learnt(given, name)}")
    return "\n".join(rows) + "\n"


def share(auc: float, best: float) -> str:
    return f"{100 * (auc - 0.5) / (best - 0.5):.0f} %"


def paired(mine: dict[int, Any], theirs: dict[int, Any]) -> str:
    seeds = sorted(mine.keys() & theirs.keys())
    if len(seeds) < 2:
        return ""
    difference = [mine[s]["metrics"]["test"]["auc"] - theirs[s]["metrics"]["test"]["auc"] for s in seeds]
    return f"{np.mean(difference):+.4f}, {stats.ttest_1samp(difference, 0.0).pvalue:.3f}"


def schemes(given: argparse.Namespace, name: str) -> list[tuple[DistanceAware, DistanceAware]]:
    """The news level's scheme of each distance-aware model, as it began and as it ended."""
    found = []
    for seed in finished(given, name, "distance-aware"):
        with quiet_libraries():
            model: Any = HeadwiseForRecommendation.from_pretrained(
                given.out / "runs" / name / "distance-aware" / str(seed)
            )
        begun: Any = HeadwiseForRecommendation(model.config)
        initialise_by_name(begun, seed)
        found.append(tuple(one.clicks.layers[0].attention.scheme for one in (begun, model)))
    return found


def learnt(given: argparse.Namespace, name: str) -> str:
    """What heads of the news level think of distance."""
    found = [(ended.w.detach().numpy(), (ended.w - begun.w).detach().numpy()) for begun, ended in schemes(given, name)]
    if not found:
        return ""
    w, moved = (np.concatenate(x) for x in zip(*found, strict=True))
    by_seed = ", ".join(f"{x.mean():+.3f}" for _, x in found)
    below, down = (f"{100 * (x < 0).mean():.0f} % of heads" for x in (w, moved))
    return (
        f"News-level w of distance-aware: mean {w.mean():+.3f}, {below} below 0; training moved it by "
        f"{moved.mean():+.3f} on average (by seed {by_seed}), {down} down."
    )


def picture(given: argparse.Namespace) -> None:
    """Figure 7: w and v of the news level's heads on each log, of the first seed, heads in order of w."""
    named = {name: found[0][1] for name in given.logs if (found := schemes(given, name))}
    for scheme in named.values():
        order = scheme.w.detach().argsort()
        assert scheme.v is not None
        scheme.w.data, scheme.v.data = scheme.w.data[order], scheme.v.data[order]
    if named:
        save_figure(
            draw_distances(list(named.values()), names=list(named), max_distance=50), given.out / "distances.png"
        )


class Memory:
    """The most memory of its own that this process has at a time, in MB, files that are mapped not counted."""

    def __init__(self) -> None:
        self.most, self.over = 0.0, threading.Event()
        self.watch = threading.Thread(target=self.look, daemon=True)
        self.watch.start()

    def look(self) -> None:
        while not self.over.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(line for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, int(own.split()[1]) / 1024)

    def stop(self) -> float:
        self.over.set()
        self.watch.join()
        return self.most


def measured(given: argparse.Namespace, size: int, what: str) -> dict[str, float]:
    """One step for one log, in a process of its own: impressions a second and peak memory."""
    torch.set_num_threads(given.threads)
    folder, cache = given.out / "logs" / str(size), given.out / "cache" / str(size)
    count, memory, start = size, Memory(), time.perf_counter()
    if what == "simulate":
        if not folder.exists():
            simulate(SimulationConfig(titles=given.titles, impressions=size, users=max(size // 10, 1000)), folder)
    elif what == "parse":
        mind.read(folder, cache=cache)
    else:
        count, start = worked(given, mind.read(folder, cache=cache), what)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"a second": count / seconds, "own MB": memory.stop(), "with mapped files MB": peak}


def worked(given: argparse.Namespace, log: mind.Log, what: str) -> tuple[int, float]:
    """Train for some steps, or evaluate test: how many impressions, and when it began."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = log.splits["train"]
    seen = find_training_impressions(split, len(log.news))
    tokenizer = build_tokenizer(log.news.data["title"][:])
    titles = tokenize_titles(tokenizer, log.news.data, given.title_length)
    sizes: dict[str, Any] = {"heads": given.heads, "head_dim": given.head_dim}
    words = HeadwiseConfig(vocab_size=len(tokenizer), word_dim=100, **sizes)
    model: Any = HeadwiseForRecommendation(RecommenderConfig(titles=words, **sizes))
    model = model.to(device)
    precision = partial(torch.autocast, device, torch.bfloat16, enabled=device == "cuda")
    if what == "evaluate":
        start = time.perf_counter()
        sum_metrics(score_by_model(model, log.splits["test"], titles, history=50, precision=precision))
        return len(log.splits["test"]), start
    clicks = ClickDataset(split, seen.rows, titles, history=50, negatives=4, seed=0)
    batches: Any = EpochBatchSampler(np.minimum(seen.history_lengths, 50), given.batch_size, seed=0)
    if what == "collate":
        chosen = [next(iter(batch)) for _, batch in zip(range(given.steps), batches, strict=False)]
        clicks[chosen[0]]  # maps the file
        start = time.perf_counter()
        return sum(len(clicks[batch]["history"]) for batch in chosen), start
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = EpochDataLoader(
        clicks,
        batch_sampler=batches,
        collate_fn=unwrap_batch,
        num_workers=int(device == "cuda"),
        pin_memory=device == "cuda",
    )
    count, start = 0, time.perf_counter()
    for step, batch in enumerate(loader):
        if step == 2:  # by now everything is warm
            count, start = 0, time.perf_counter()
        if step == given.steps + 2:
            break
        with precision():
            loss = model(**{name: x.to(device, non_blocking=True) for name, x in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count += len(batch["history"])
    if device == "cuda":
        torch.cuda.synchronize()
    return count, start


def scale(given: argparse.Namespace) -> None:
    steps = ("simulate", "parse", "collate", "train", "evaluate")
    rows = ["| impressions | " + " | ".join(f"{step}, a second | own MB | with mapped files" for step in steps) + " |"]
    rows.append("|---|" + "---|" * 3 * len(steps))
    context = get_context("spawn")
    for size in given.sizes:
        cells = []
        for step in steps:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found = pool.submit(measured, given, size, step).result()
            cells.append(" | ".join(f"{value:,.0f}" for value in found.values()))
            print(size, step, {name: round(value) for name, value in found.items()}, flush=True)
        rows.append(f"| {size:,} | " + " | ".join(cells) + " |")
    rows.append(f"\n{judged()}")
    (given.out / "scale.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


def judged(impressions: int = 500_000, candidates: int = 30) -> str:
    """How long metrics take."""
    random = np.random.default_rng(0)
    scores = random.random(impressions * candidates, dtype=np.float32)
    clicked = random.random(len(scores)) < 0.1
    offsets = np.arange(impressions + 1) * candidates
    start, worked = time.perf_counter(), time.process_time()
    compute(scores, clicked, offsets)
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    return (
        f"Metrics of {impressions:,} impressions with {len(scores):,} candidates took {seconds:.1f} s, "
        f"{worked:.1f} s of a core."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "scale"])
    parser.add_argument("--titles", required=True, type=Path, help="titles with topics, for the simulator")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--vectors", type=Path, help="word vectors")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=list(LOGS))
    parser.add_argument("--methods", nargs="+", help="only these of each log")
    parser.add_argument("--impressions", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--other-seeds", type=int, default=3, help="of the logs beside the default one")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run after so long")
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--title-length", type=int, default=16)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=16)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=20, help="of training, that are measured")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    {"table": table, "scale": scale}[given.what](given)


if __name__ == "__main__":
    main()
