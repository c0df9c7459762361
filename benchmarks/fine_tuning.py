"""Benchmark of guides and position schemes in fine-tuning: methods × datasets × paired seeds.

    python benchmarks/fine_tuning.py --model MODEL --data DIR --out DIR

All methods of a seed have the same training rows, batches and initial head. Each run is a line of `runs.jsonl`.
Existing runs are not repeated. The table is written to `fine_tuning.md`.
"""

import argparse
import csv
import gzip
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainingArguments,
    set_seed,
)

import headwise as hw
from headwise.integrations import LayerRecord, RecordField, eval_mode, recording, use_headwise_attention
from headwise.studies.statistics import t_test

#: For each dataset: training file, test file, text columns, number of training rows, number of test rows.
DATASETS: dict[str, tuple[str, str, tuple[str, ...], int, int]] = {
    "sst2": ("sst2/train.csv.gz", "sst2/test.csv.gz", ("text",), 1000, 1821),
    "snli": ("snli/train_subset.csv.gz", "snli/test.csv.gz", ("premise", "hypothesis"), 2000, 3000),
    "ag": ("ag_news/train_subset.csv.gz", "ag_news/test.csv.gz", ("title", "text", "description"), 500, 3000),
    "healthver": ("medical/healthver_dev.csv.gz", "medical/healthver_test.csv.gz", ("claim", "evidence"), 1900, 1823),
}
EPOCHS, BATCH_SIZE, MAX_LENGTH, LEARNING_RATE = 5, 32, 256, 5e-5


def build_guides(method: str, tokenizer: Any) -> list[hw.Guide]:
    """Build the guides of a method such as `distance + MDG + PDG`; `MDG@0.05` sets the share."""
    period_id = tokenizer.convert_tokens_to_ids(".")
    guide_classes: dict[str, Any] = {
        "MDG": hw.guides.MapDiscrimination,
        "PDG": hw.guides.PatternDecorrelation,
        "First": hw.guides.First,
        "Next": hw.guides.Next,
        "Previous": hw.guides.Previous,
        "Delimiter": partial(hw.guides.Delimiter, tokens=[tokenizer.sep_token_id]),
        "Period": partial(hw.guides.Period, tokens=[period_id]),
    }
    parts = [part.partition("@") for part in method.split(" + ")]
    options = {name: {"share": float(share)} if share else {} for name, _, share in parts if name in guide_classes}
    return [guide_classes[name]("auto", **options[name]) for name in options]


SCHEMES: dict[str, tuple[type[hw.Scheme], dict[str, Any], float]] = {
    "distance": (hw.DistanceAware, {}, 5e-3),
    "distance lr 1e-3": (hw.DistanceAware, {}, 1e-3),
    "distance lr 2e-2": (hw.DistanceAware, {}, 2e-2),
    "distance v=1": (hw.DistanceAware, {"v_init": 1.0}, 5e-3),
    "distance v=-1": (hw.DistanceAware, {"v_init": -1.0}, 5e-3),
    "distance lower half": (hw.DistanceAware, {"layers": [0, 1, 2]}, 5e-3),
    "distance upper half": (hw.DistanceAware, {"layers": [3, 4, 5]}, 5e-3),
    "relative": (hw.RelativePositions, {}, 1e-3),
}
GUIDES = ("MDG", "PDG", "MDG + PDG", "First", "Next", "Previous", "Delimiter", "Period")
METHODS = ("unchanged", *GUIDES, "distance", "relative", "distance + MDG + PDG")


@cache
def read_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def encode(tokenizer: Any, rows: list[dict[str, str]], dataset: str, classes: list[str]) -> list[dict[str, Any]]:
    def texts(row: dict[str, str]) -> list[str]:
        columns = [row[column] for column in DATASETS[dataset][2] if column in row]
        return [" ".join(columns).strip()] if dataset == "ag" else columns

    return [
        {**tokenizer(*texts(row), truncation=True, max_length=MAX_LENGTH), "labels": classes.index(row["label"])}
        for row in rows
    ]


@cache
def load_test_examples(name: str, data: Path, dataset: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the test examples and the class names."""
    train, test, *_, num_test_rows = DATASETS[dataset]
    rows, classes = read_rows(data / test), sorted({row["label"] for row in read_rows(data / train)})
    rows = random.Random(0).sample(rows, min(num_test_rows, len(rows)))
    return encode(AutoTokenizer.from_pretrained(name), rows, dataset, classes), classes


class ListRecorder:
    """Keeps the records of all layers."""

    is_recording = True
    required_fields: frozenset[RecordField] = frozenset()

    def __init__(self) -> None:
        self.records: list[LayerRecord] = []

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        self.records.append(record)


def head_similarity(model: Any, batches: list[dict[str, Any]]) -> float:
    """Return the mean cosine between the received attention of two heads of any layers."""
    cosines = []
    with eval_mode(model), use_headwise_attention(model):
        for batch in batches:
            recorder = ListRecorder()
            with recording(model, recorder):
                model(**batch)
            rows = torch.cat([layer.received * layer.real[:, None] for layer in recorder.records], dim=1).float()
            rows = nn.functional.normalize(rows, dim=-1)
            n = rows.shape[1]
            cosines.append((rows.sum(dim=1).square().sum(dim=-1) - n) / (n * (n - 1)))
    return float(torch.cat(cosines).mean())


def run(name: str, data: Path, dataset: str, seed: int, method: str) -> dict[str, Any]:
    """Fine-tune and evaluate a model, and return one line of `runs.jsonl`."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(name)
    test, classes = load_test_examples(name, data, dataset)
    train = read_rows(data / DATASETS[dataset][0])
    rows = random.Random(seed).sample(train, min(DATASETS[dataset][3], len(train)))
    set_seed(seed)
    model: Any = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(classes), dtype=torch.float32)
    scheme = next((part for part in method.split(" + ") if part in SCHEMES), None)
    if scheme is not None:
        scheme_class, options, learning_rate = SCHEMES[scheme]
        hw.retrofit(model, scheme_class, **options)
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=16)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=256,
        learning_rate=LEARNING_RATE,
        warmup_steps=0.1,
        bf16=torch.cuda.is_available(),
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    trainer = hw.GuidedTrainer(
        model=model,
        args=arguments,
        train_dataset=encode(tokenizer, rows, dataset, classes),
        data_collator=collate,
        guides=build_guides(method, tokenizer),
        scheme_learning_rate=learning_rate if scheme else None,
    )
    device = arguments.device
    batches = [{k: v.to(device) for k, v in collate(test[i : i + 32]).items()} for i in range(0, 128, 32)]
    similarity_before = head_similarity(model.to(device), batches)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    predictions: Any = trainer.predict(test)  # type: ignore[arg-type]
    accuracy = (predictions.predictions.argmax(axis=-1) == predictions.label_ids).mean()
    return {
        "set": dataset,
        "seed": seed,
        "method": method,
        "accuracy": 100 * float(accuracy),
        "similarity before": similarity_before,
        "similarity": head_similarity(model, batches),
        "train_seconds": seconds,
    }


def pending_runs(
    datasets: list[str], seeds: int, methods: list[str], lines: list[dict[str, Any]]
) -> Iterator[tuple[Any, ...]]:
    """Yield dataset, seed and method of all runs that have no line yet."""
    finished = {(line["set"], line["seed"], line["method"]) for line in lines}
    for seed in range(seeds):
        for dataset in datasets:
            for method in methods:
                if (dataset, seed, method) not in finished:
                    yield dataset, seed, method


def build_table(lines: list[dict[str, Any]], baseline: str = "unchanged") -> str:
    """Return accuracy, its paired difference to the unchanged model with p, and the similarity of heads, as Markdown.

    Only seeds that all methods have been run with are included.
    """
    by_run = {(line["set"], line["method"], line["seed"]): line for line in lines}
    datasets = [dataset for dataset in DATASETS if any(line["set"] == dataset for line in lines)]
    methods = list(dict.fromkeys(line["method"] for line in sorted(lines, key=lambda line: sort_key(line["method"]))))
    common_seeds = {
        dataset: [seed for seed in range(1000) if all((dataset, method, seed) in by_run for method in methods)]
        for dataset in datasets
    }
    headers = [
        f"{dataset}, {len(common_seeds[dataset])} seeds: accuracy | difference, p | cosine" for dataset in datasets
    ]
    rows = ["| method | " + " | ".join(headers) + " | all |"]
    rows.append("|---|" + "---|" * (3 * len(datasets) + 1))
    for method in methods:
        cells, differences = [], []
        for dataset in datasets:
            seeds = common_seeds[dataset]
            if len(seeds) < 2:
                cells += ["", "", ""]
                continue
            accuracy = torch.tensor([by_run[dataset, method, s]["accuracy"] for s in seeds], dtype=torch.float64)
            baseline_accuracy = torch.tensor(
                [by_run[dataset, baseline, s]["accuracy"] for s in seeds], dtype=torch.float64
            )
            cosine = torch.tensor([by_run[dataset, method, s]["similarity"] for s in seeds]).mean()
            difference = accuracy - baseline_accuracy
            cells += [
                f"{accuracy.mean():.2f} ± {accuracy.std():.2f}",
                format_difference(difference, method, baseline),
                f"{cosine:.2f}",
            ]
            differences.append(difference)
        cells.append(format_difference(torch.cat(differences), method, baseline) if differences else "")
        rows.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def sort_key(method: str) -> int:
    """Return the position of a method in the table."""
    methods = [*METHODS, *SCHEMES]
    return methods.index(method) if method in methods else len(methods)


def format_difference(difference: torch.Tensor, method: str, baseline: str) -> str:
    """Return the mean difference and the p-value of a paired t-test."""
    if method == baseline:
        return ""
    return f"{difference.mean():+.2f}, {t_test(difference.numpy()):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face encoder, by name or path")
    parser.add_argument("--data", required=True, type=Path, help=", ".join(DATASETS[name][0] for name in DATASETS))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which no run is started")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    start = time.perf_counter()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool, path.open("a") as log:
        runs = list(pending_runs(args.datasets, args.seeds, args.methods, lines))
        deadline = time.time() + args.seconds
        futures = [pool.submit(run_before, deadline, args.model, args.data, *parameters) for parameters in runs]
        for count, future in enumerate(as_completed(futures), start=1):
            line = future.result()
            if line is not None:
                log.write(json.dumps(line) + "\n")
                log.flush()
                print(f"{count}/{len(runs)} {time.perf_counter() - start:.0f} s {line}", flush=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (args.out / "fine_tuning.md").write_text(build_table(lines))
    print(build_table(lines))


def run_before(deadline: float, *parameters: Any) -> dict[str, Any] | None:
    """Start a run, or return None after the deadline."""
    return None if time.time() > deadline else run(*parameters)


if __name__ == "__main__":
    main()
