"""Does guiding, or distance, help a pre-trained model? Methods × data sets × paired seeds, and a table.

    python benchmarks/fine_tuning.py --model MODEL --data FOLDER --out FOLDER

Every method of a seed sees the same training rows, batches and initial head. A run is a line of `runs.jsonl`; those
that are there are not run again. The table is `fine_tuning.md`.
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

#: Of each set: files of training and test, columns of text, rows to train and to test on.
SETS: dict[str, tuple[str, str, tuple[str, ...], int, int]] = {
    "sst2": ("sst2/train.csv.gz", "sst2/test.csv.gz", ("text",), 1000, 1821),
    "snli": ("snli/train_subset.csv.gz", "snli/test.csv.gz", ("premise", "hypothesis"), 2000, 3000),
    "ag": ("ag_news/train_subset.csv.gz", "ag_news/test.csv.gz", ("title", "text", "description"), 500, 3000),
    "healthver": ("medical/healthver_dev.csv.gz", "medical/healthver_test.csv.gz", ("claim", "evidence"), 1900, 1823),
}
EPOCHS, BATCH, LENGTH, LEARNING_RATE = 5, 32, 256, 5e-5


def guides_of(method: str, tokenizer: Any) -> list[hw.Guide]:
    """The guides of a method such as `distance + MDG + PDG`; `MDG@0.05` has another share than the default."""
    stop = tokenizer.convert_tokens_to_ids(".")
    made: dict[str, Any] = {
        "MDG": hw.guides.MapDiscrimination,
        "PDG": hw.guides.PatternDecorrelation,
        "First": hw.guides.First,
        "Next": hw.guides.Next,
        "Previous": hw.guides.Previous,
        "Delimiter": partial(hw.guides.Delimiter, tokens=[tokenizer.sep_token_id]),
        "Period": partial(hw.guides.Period, tokens=[stop]),
    }
    parts = [part.partition("@") for part in method.split(" + ")]
    shares = {name: {"share": float(share)} if share else {} for name, _, share in parts if name in made}
    return [made[name]("auto", **share) for name, share in shares.items()]


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
def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def encoded(tokenizer: Any, rows: list[dict[str, str]], chosen: str, classes: list[str]) -> list[dict[str, Any]]:
    def texts(row: dict[str, str]) -> list[str]:
        found = [row[column] for column in SETS[chosen][2] if column in row]
        return [" ".join(found).strip()] if chosen == "ag" else found

    return [
        {**tokenizer(*texts(row), truncation=True, max_length=LENGTH), "labels": classes.index(row["label"])}
        for row in rows
    ]


@cache
def held_out(name: str, data: Path, chosen: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Test examples, and the labels' names."""
    train, test, *_, tested = SETS[chosen]
    rows, classes = read(data / test), sorted({row["label"] for row in read(data / train)})
    rows = random.Random(0).sample(rows, min(tested, len(rows)))
    return encoded(AutoTokenizer.from_pretrained(name), rows, chosen, classes), classes


class Ear:
    """Keeps what heads receive."""

    is_recording = True
    required_fields: frozenset[RecordField] = frozenset()

    def __init__(self) -> None:
        self.heard: list[LayerRecord] = []

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        self.heard.append(heard)


def similarity(model: Any, batches: list[dict[str, Any]]) -> float:
    """The mean cosine between the received vectors of two heads, of any layers."""
    found = []
    with eval_mode(model), use_headwise_attention(model):
        for batch in batches:
            ear = Ear()
            with recording(model, ear):
                model(**batch)
            rows = torch.cat([layer.received * layer.real[:, None] for layer in ear.heard], dim=1).float()
            rows = nn.functional.normalize(rows, dim=-1)
            n = rows.shape[1]
            found.append((rows.sum(dim=1).square().sum(dim=-1) - n) / (n * (n - 1)))
    return float(torch.cat(found).mean())


def run(name: str, data: Path, chosen: str, seed: int, method: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(name)
    test, classes = held_out(name, data, chosen)
    train = read(data / SETS[chosen][0])
    rows = random.Random(seed).sample(train, min(SETS[chosen][3], len(train)))
    set_seed(seed)
    model: Any = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(classes), dtype=torch.float32)
    scheme = next((part for part in method.split(" + ") if part in SCHEMES), None)
    if scheme is not None:
        kind, options, rate = SCHEMES[scheme]
        hw.retrofit(model, kind, **options)
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=16)
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # to which nothing is saved
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
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
        train_dataset=encoded(tokenizer, rows, chosen, classes),
        data_collator=collate,
        guides=guides_of(method, tokenizer),
        scheme_learning_rate=rate if scheme else None,
    )
    device = arguments.device
    shown = [{k: v.to(device) for k, v in collate(test[at : at + 32]).items()} for at in range(0, 128, 32)]
    before = similarity(model.to(device), shown)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    predictions: Any = trainer.predict(test)  # type: ignore[arg-type]
    right = (predictions.predictions.argmax(axis=-1) == predictions.label_ids).mean()
    return {
        "set": chosen,
        "seed": seed,
        "method": method,
        "accuracy": 100 * float(right),
        "similarity before": before,
        "similarity": similarity(model, shown),
        "train_seconds": seconds,
    }


def jobs(sets: list[str], seeds: int, methods: list[str], done: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    finished = {(line["set"], line["seed"], line["method"]) for line in done}
    for seed in range(seeds):
        for chosen in sets:
            for method in methods:
                if (chosen, seed, method) not in finished:
                    yield chosen, seed, method


def table(lines: list[dict[str, Any]], baseline: str = "unchanged") -> str:
    """Accuracy, the paired difference to the unchanged model with its p, and how alike heads are.

    Of the seeds that all methods have been run with.
    """
    by = {(line["set"], line["method"], line["seed"]): line for line in lines}
    sets = [chosen for chosen in SETS if any(line["set"] == chosen for line in lines)]
    methods = list(dict.fromkeys(line["method"] for line in sorted(lines, key=lambda line: order(line["method"]))))
    seeds_of = {
        chosen: [seed for seed in range(1000) if all((chosen, method, seed) in by for method in methods)]
        for chosen in sets
    }
    heads = [f"{chosen}, {len(seeds_of[chosen])} seeds: accuracy | difference, p | cosine" for chosen in sets]
    out = ["| method | " + " | ".join(heads) + " | all |"]
    out.append("|---|" + "---|" * (3 * len(sets) + 1))
    for method in methods:
        cells, every = [], []
        for chosen in sets:
            seeds = seeds_of[chosen]
            if len(seeds) < 2:
                cells += ["", "", ""]
                continue
            mine = torch.tensor([by[chosen, method, s]["accuracy"] for s in seeds], dtype=torch.float64)
            theirs = torch.tensor([by[chosen, baseline, s]["accuracy"] for s in seeds], dtype=torch.float64)
            cosine = torch.tensor([by[chosen, method, s]["similarity"] for s in seeds]).mean()
            difference = mine - theirs
            cells += [f"{mine.mean():.2f} ± {mine.std():.2f}", paired(difference, method, baseline), f"{cosine:.2f}"]
            every.append(difference)
        cells.append(paired(torch.cat(every), method, baseline) if every else "")
        out.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def order(method: str) -> int:
    known = [*METHODS, *SCHEMES]
    return known.index(method) if method in known else len(known)


def paired(difference: torch.Tensor, method: str, baseline: str) -> str:
    if method == baseline:
        return ""
    return f"{difference.mean():+.2f}, {t_test(difference.numpy()):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a Hugging Face encoder, by name or path")
    parser.add_argument("--data", required=True, type=Path, help=", ".join(SETS[one][0] for one in SETS))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so long")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "runs.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    start = time.perf_counter()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool, file.open("a") as log:
        todo = list(jobs(given.sets, given.seeds, given.methods, done))
        latest = time.time() + given.seconds
        futures = [pool.submit(limited, latest, given.model, given.data, *job) for job in todo]
        for count, future in enumerate(as_completed(futures), start=1):
            line = future.result()
            if line is not None:
                log.write(json.dumps(line) + "\n")
                log.flush()
                print(f"{count}/{len(todo)} {time.perf_counter() - start:.0f} s {line}", flush=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    (given.out / "fine_tuning.md").write_text(table(lines))
    print(table(lines))


def limited(latest: float, *arguments: Any) -> dict[str, Any] | None:
    """A run, unless it is too late to begin one."""
    return None if time.time() > latest else run(*arguments)


if __name__ == "__main__":
    main()
