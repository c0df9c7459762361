"""Benchmark of translation on Multi30k: the three tables of Shaw et al. (2018), long sentences, and speed.

    python benchmarks/translation.py --data multi30k --out DIR --jobs 12

Each run is a `headwise train --task translation --model small` and adds a line to `runs.jsonl`. Existing runs are not
repeated. The pairs are tokenized once for all runs. The report is written to `translation.md` and `lengths.png`, and
the translations to the directory `translations`.
"""

import argparse
import gzip
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from headwise.inspection.style import MARKERS, PALETTE, plot_style, save_figure
from headwise.tasks.translation import metrics
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.translation import pipeline
from headwise.training.translation.batches import TokenBatchSampler, TranslationDataset
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.data import TranslationData, load_data
from headwise.training.translation.model import build_model
from headwise.training.translation.pipeline import (
    DEFAULTS,
    TranslationBundle,
    TranslationPipeline,
    open_tokens,
    write_tokens,
)
from headwise.training.translation.tokens import TokenizedPairs

Job = dict[str, Any]

TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
#: Maximum number of words in the training sentences of the study of lengths.
MAX_TRAIN_WORDS = 10
#: Number of dev evaluations and checkpoints of a run; fewer than usual, because the runs share a disk.
NUM_EVALUATIONS = 8
#: Ranges of words in the source, both ends included.
LENGTH_RANGES = {"1–10": (1, 10), "11–12": (11, 12), "13–15": (13, 15), "16–20": (16, 20), "over 20": (21, 999)}

#: Options of each method.
METHODS: dict[str, dict[str, Any]] = {
    "absolute": {"scheme": "plain"},
    "relative": {"scheme": "rpr"},
    "both": {"scheme": "rpr", "positions": "sinusoidal"},
    "none": {"scheme": "none"},
    "distance-aware": {"scheme": "distance-aware"},
    "TENER": {"scheme": "tener"},
    **{f"k={k}": {"scheme": "rpr", "k": k} for k in (0, 1, 2, 4, 64, 256)},
    "keys only": {"scheme": "rpr", "relative": "keys"},
    "values only": {"scheme": "rpr", "relative": "values"},
}
TABLE1_METHODS = ("absolute", "relative", "both", "none")
#: The pairs and methods of each study, in order of priority.
STUDIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "table1": ("en-de", (*TABLE1_METHODS, "distance-aware", "TENER")),
    "table2": ("en-de", ("k=0", "k=2", "k=1", "k=4", "k=64", "k=256")),
    "table3": ("en-de", ("keys only", "values only")),
    "lengths": ("short", ("absolute", "relative", "distance-aware")),
    "french": ("en-fr", TABLE1_METHODS),
}
SPEED_METHODS = {name: METHODS[name] for name in (*TABLE1_METHODS, "distance-aware", "TENER")} | {
    "Transformer-XL": {"scheme": "transformer-xl"}
}
#: Metrics of the tables, with their number of digits.
TABLE_METRICS = {"bleu": 2, "chrf": 2, "dev loss": 3}


def build_config(job: Job, work_dir: Path) -> TranslationConfig:
    return TranslationConfig(
        data=(str(work_dir / job["pairs"]),),
        source="en",
        target=target_language(job["pairs"]),
        model="small",
        vocabulary=8192,
        early_stopping_patience=10**6,
        seed=job["seed"],
        **job["recipe"],
        **METHODS[job["method"]],
    )


def target_language(pairs: str) -> str:
    return "fr" if pairs == "en-fr" else "de"


def write_pairs(data: Path, work_dir: Path, pairs: str) -> None:
    """Write line-aligned files: train, val and test 2016; for `short`, short sentences, and all test sets as one."""
    directory = work_dir / pairs
    directory.mkdir(parents=True)
    languages = ("en", target_language(pairs))
    all_splits = {
        split: list(zip(*(read_lines(data / f"{split}.{language}.gz") for language in languages), strict=True))
        for split in ("train", "val", *TEST_SETS)
    }
    if pairs == "short":
        splits = {
            split: [pair for pair in all_splits[split] if count_words(pair[0]) <= MAX_TRAIN_WORDS]
            for split in ("train", "val")
        }
        splits["test"] = [pair for split in TEST_SETS for pair in all_splits[split]]
    else:
        splits = {"train": all_splits["train"], "val": all_splits["val"], "test": all_splits[TEST_SETS[0]]}
    for split, rows in splits.items():
        for side, language in enumerate(languages):
            text = "".join(f"{row[side]}\n" for row in rows)
            (directory / f"{split}.{language}").write_text(text, encoding="utf-8")


def read_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def count_words(text: str) -> int:
    return len(text.split())


def tokenize_pairs(data: Path, work_dir: Path, pairs: str, recipe: Job) -> None:
    """Write the tokens of a set of pairs, if they do not exist."""
    tokens_dir = work_dir / f"{pairs}.tokens"
    if not tokens_dir.exists():
        write_pairs(data, work_dir, pairs)
        config = build_config({"pairs": pairs, "method": "absolute", "seed": 0, "recipe": recipe}, work_dir)
        with quiet_libraries():
            write_tokens(config, load_data(config).pairs, tokens_dir)


class TokenizedPipeline(TranslationPipeline):
    """A pipeline whose pairs are tokenized already."""

    def __init__(self, config: TranslationConfig, tokens_dir: Path) -> None:
        super().__init__(config)
        self.tokens_dir = tokens_dir

    def build(self, data: TranslationData, scratch_dir: Path) -> TranslationBundle:
        return self.build_from_tokens(data, self.tokens_dir)


def run(job: Job, work_dir: Path) -> dict[str, Any]:
    """Train and evaluate a model, and return one line of `runs.jsonl` and the translations."""
    torch.set_num_threads(1)
    pipeline.NUM_EVALUATIONS = NUM_EVALUATIONS
    run_dir = Path(tempfile.mkdtemp(dir=work_dir))
    with quiet_libraries(), open(os.devnull, "w") as devnull, redirect_stderr(devnull):
        runner = TokenizedPipeline(build_config(job, work_dir), work_dir / f"{job['pairs']}.tokens")
        result = runner.run(run_dir, resume=False)
    predictions = pq.read_table(run_dir / "predictions.parquet").to_pylist()
    shutil.rmtree(run_dir)
    test_rows = [row for row in predictions if row["split"] == "test"]
    line = {name: job[name] for name in ("study", "pairs", "method", "seed", "recipe")} | {
        "bleu": result["metrics"]["test"]["bleu"],
        "chrf": result["metrics"]["test"]["chrf"],
        "dev bleu": result["metrics"]["dev"]["bleu"],
        "dev loss": result["dev_loss"],
        "steps": result["steps"],
        "epochs": result["epochs"],
        "train_seconds": result["train_seconds"],
        "sentences per second": result["decoding"]["sentences_per_second"],
        "parameters": result["parameters"],
        "signature": result["signatures"]["bleu"],
        "translations": [row["predicted"] for row in test_rows],
    }
    if job["study"] == "lengths":
        line["buckets"] = {name: bleu_of_lengths(test_rows, *limits) for name, limits in LENGTH_RANGES.items()}
    return line


def bleu_of_lengths(rows: Sequence[dict[str, str]], min_words: int, max_words: int) -> float:
    """Compute BLEU of the sentences whose source has a number of words in this range."""
    selected = [row for row in rows if min_words <= count_words(row["source"]) <= max_words]
    return metrics.compute([row["predicted"] for row in selected], [row["reference"] for row in selected])["bleu"]


def pending_jobs(
    studies: Sequence[str], methods: Sequence[str], seeds: int, recipe: Job, lines: list[Job]
) -> Iterator[Job]:
    """Yield the runs that have no line yet, seed by seed."""
    finished = {
        (line["study"], line["method"], line["seed"], json.dumps(line["recipe"]))
        for line in lines
        if line["study"] != "speed"
    }
    for seed in range(seeds):
        for study in studies:
            pairs, study_methods = STUDIES[study]
            for method in study_methods:
                key = (study, method, seed, json.dumps(recipe))
                if method in (methods or study_methods) and key not in finished:
                    yield {"study": study, "pairs": pairs, "method": method, "seed": seed, "recipe": recipe}


def run_before(deadline: float, job: Job, work_dir: Path) -> dict[str, Any] | None:
    """Start a run, or return None after the deadline."""
    return None if time.time() > deadline else run(job, work_dir)


# Speed: all schemes get the same batches, without other processes on the device.


def measure_speed(work_dir: Path, recipe: Job, models: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    """Yield training and decoding speed for each model size and method, in two interleaved rounds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for size in models:
        for round_number in range(2):
            for method, options in SPEED_METHODS.items():
                job = {"pairs": "en-de", "method": "absolute", "seed": 0, "recipe": recipe}
                pairs = load_data(build_config(job, work_dir)).pairs
                tokenizer, tokens = open_tokens(pairs, work_dir / "en-de.tokens")
                shared: Job = {"data": (str(work_dir / "en-de"),), "source": "en", "target": "de", "model": size}
                model: Any = build_model(TranslationConfig(**shared, **options), tokenizer)
                model = model.to(device)
                yield {
                    "study": "speed",
                    "device": device_name(),
                    "model": size,
                    "method": method,
                    "round": round_number,
                    **training_speed(model, tokens["train"], DEFAULTS[size].batch_size, steps),
                    **decoding_speed(model, tokens["test"]),
                }


def training_speed(model: Any, tokens: TokenizedPairs, batch_size: int, steps: int) -> dict[str, Any]:
    """Measure training steps, after one warm-up pass over the same batches."""
    sampler = TokenBatchSampler(tokens.source.lengths, tokens.target.lengths, batch_size)
    config = model.config
    dataset = TranslationDataset(
        tokens, model.device, decoder_start_id=config.decoder_start_token_id, pad_id=config.pad_token_id
    )
    batches = [dataset.__getitems__(rows) for rows, _ in zip(sampler, range(steps), strict=False)]
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=model.device.type == "cuda")
    model.train()

    def train_step(batch: dict[str, Tensor]) -> None:
        with torch.autocast(model.device.type, torch.bfloat16):
            logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        labels = batch["labels"].flatten()
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, label_smoothing=0.1).backward()
        adam.step()
        adam.zero_grad()

    def train_all() -> None:
        for batch in batches:
            train_step(batch)

    train_all()  # compiles and selects kernels
    seconds = measure_seconds(train_all)
    num_tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    return {"tokens per second": num_tokens / seconds, "ms per step": 1000 * seconds / len(batches)}


def decoding_speed(model: Any, tokens: TokenizedPairs, length: int = 20) -> dict[str, Any]:
    """Measure decoding of test 2016 in one batch, `length` tokens per sentence, with an untrained model."""
    model.eval()
    pad_id = model.config.pad_token_id
    input_ids = torch.from_numpy(tokens.source.pad(np.arange(len(tokens)), pad_id))
    batch = {"input_ids": input_ids.to(model.device), "attention_mask": (input_ids != pad_id).long().to(model.device)}

    def decode(beams: int) -> None:
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16):
            model.generate(**batch, num_beams=beams, min_new_tokens=length, max_new_tokens=length, do_sample=False)

    speeds = {}
    for beams in (1, 4):
        decode(beams)  # warm-up
        speeds[f"sentences per second, beam {beams}"] = len(input_ids) / measure_seconds(partial(decode, beams))
    return speeds


def measure_seconds(action: Callable[[], Any]) -> float:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    synchronize()
    start = time.perf_counter()
    action()
    synchronize()
    return time.perf_counter() - start


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"


# The report.


def build_report(lines: list[Job], data: Path, out_dir: Path) -> str:
    """Return the report as Markdown, and draw its figure."""
    runs = [line for line in lines if line["study"] != "speed"]
    parts = ["# Translation on Multi30k\n"]
    references = read_lines(data / f"{TEST_SETS[0]}.de.gz")
    if runs:
        last = runs[-1]
        recipe = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in last["recipe"].items())
        parts.append(
            f"Model small (about {last['parameters'] / 1e6:.1f} million parameters), 8,192 subwords, {recipe}; beam 4, "
            f"length penalty 0.6. BLEU of test 2016 by sacrebleu (`{last['signature']}`), "
            "mean ± standard deviation over seeds.\n"
        )
    parts += [
        build_table("Table 1: positions, English → German", runs, "table1", STUDIES["table1"][1]),
        build_table("Table 1: positions, English → French", runs, "french", TABLE1_METHODS),
        build_table(
            "Table 2: clipping distance k", add_k_16(runs), "table2", [f"k={k}" for k in (0, 1, 2, 4, 16, 64, 256)]
        ),
        build_table(
            "Table 3: vectors for keys and values",
            add_table1_to_table3(runs),
            "table3",
            ("relative", "keys only", "values only", "none"),
        ),
        build_significance_table(runs, references, out_dir),
        build_length_section(runs, out_dir),
        build_speed_section([line for line in lines if line["study"] == "speed"]),
    ]
    return "\n".join(part for part in parts if part)


def add_k_16(runs: list[Job]) -> list[Job]:
    """Add the runs of table 1 with relative positions to table 2, as k = 16."""
    return runs + [
        line | {"study": "table2", "method": "k=16"}
        for line in runs
        if line["study"] == "table1" and line["method"] == "relative"
    ]


def add_table1_to_table3(runs: list[Job]) -> list[Job]:
    """Add the runs of table 1 with both vectors (relative) and with neither (none) to table 3."""
    return runs + [
        line | {"study": "table3"}
        for line in runs
        if line["study"] == "table1" and line["method"] in ("relative", "none")
    ]


def build_table(title: str, runs: list[Job], study: str, methods: Sequence[str]) -> str:
    """Return the metrics of a study's methods; empty if there are no runs."""
    rows = [f"## {title}\n", "| | BLEU | chrF | dev loss | seeds |", "|---|---|---|---|---|"]
    for method in methods:
        method_runs = [line for line in runs if line["study"] == study and line["method"] == method]
        if method_runs:
            cells = [
                format_mean([line[name] for line in method_runs], digits) for name, digits in TABLE_METRICS.items()
            ]
            rows.append(f"| {method} | {' | '.join(cells)} | {len(method_runs)} |")
    return "\n".join(rows) + "\n" if len(rows) > 3 else ""


def format_mean(values: Sequence[float], digits: int) -> str:
    """Return mean ± standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def build_significance_table(runs: list[Job], references: list[str], out_dir: Path) -> str:
    """Compare each method with absolute positions for the same seed, by sacrebleu's paired bootstrap."""
    rows = [
        "## Compared with absolute positions\n",
        "| | difference in BLEU by seed | p by paired bootstrap |",
        "|---|---|---|",
    ]
    lines = {(line["method"], line["seed"]): line for line in runs if line["study"] == "table1"}
    for method in STUDIES["table1"][1][1:]:
        pairs = [
            (lines["absolute", seed], line)
            for (name, seed), line in lines.items()
            if name == method and ("absolute", seed) in lines
        ]
        if not pairs:
            continue
        p_values = [
            metrics.compare_systems(
                {"absolute": read_translations(out_dir, absolute), "method": read_translations(out_dir, line)},
                references,
            )["method"]["p"]
            for absolute, line in pairs
        ]
        differences = ", ".join(f"{line['bleu'] - absolute['bleu']:+.2f}" for absolute, line in pairs)
        rows.append(f"| {method} | {differences} | {', '.join(f'{p:.3f}' for p in p_values)} |")
    return "\n".join(rows) + "\n" if len(rows) > 3 else ""


def translations_path(out_dir: Path, line: Job) -> Path:
    directory = out_dir / "translations"
    directory.mkdir(exist_ok=True)
    return directory / f"{line['study']} {line['method']} {line['seed']}.txt"


def read_translations(out_dir: Path, line: Job) -> list[str]:
    return translations_path(out_dir, line).read_text(encoding="utf-8").split("\n")[:-1]


def build_length_section(runs: list[Job], out_dir: Path) -> str:
    """Return BLEU by length, and draw it."""
    study_runs = [line for line in runs if line["study"] == "lengths"]
    if not study_runs:
        return ""
    rows = [
        f"## Trained on sentences of at most {MAX_TRAIN_WORDS} words, tested by length\n",
        "| | " + " | ".join(LENGTH_RANGES) + " |",
        "|---|" + "---|" * len(LENGTH_RANGES),
    ]
    with plot_style(5.0, 3.2) as figure:
        axes: Any = figure.subplots()
        for number, method in enumerate(STUDIES["lengths"][1]):
            values = [
                [line["buckets"][name] for name in LENGTH_RANGES] for line in study_runs if line["method"] == method
            ]
            if values:
                cells = [format_mean(column, 1) for column in zip(*values, strict=True)]
                rows.append(f"| {method} | {' | '.join(cells)} |")
                style = {"color": PALETTE[number], "marker": MARKERS[number], "label": method, "capsize": 2}
                axes.errorbar(list(LENGTH_RANGES), np.mean(values, axis=0), yerr=np.std(values, axis=0), **style)
        axes.axvspan(-0.3, 0.3, color="#EEEEEE")
        axes.set(xlabel="words in the source; gray: lengths in training", ylabel="BLEU", ylim=(0, None))
        axes.legend()
        save_figure(figure, out_dir / "lengths.png")
    return "\n".join(rows) + "\n\n![BLEU by length](lengths.png)\n"


def build_speed_section(lines: list[Job]) -> str:
    """Return the best of the rounds for each model size and method, and its ratio to absolute positions."""
    if not lines:
        return ""
    names = ("tokens per second", "sentences per second, beam 1", "sentences per second, beam 4")
    rows = ["## Speed\n", f"Target tokens in training, and sentences decoded to 20 tokens, {lines[0]['device']}.\n"]
    for size in dict.fromkeys(line["model"] for line in lines):
        rows += [f"| {size} | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
        best = {
            method: {
                name: max(line[name] for line in lines if (line["model"], line["method"]) == (size, method))
                for name in names
            }
            for method in dict.fromkeys(line["method"] for line in lines if line["model"] == size)
        }
        for method, speeds in best.items():
            cells = [f"{speeds[name]:,.0f} ({speeds[name] / best['absolute'][name]:.2f}×)" for name in names]
            rows.append(f"| {method} | {' | '.join(cells)} |")
        rows.append("")
    return "\n".join(rows)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="Multi30k: train.en.gz, train.de.gz, val, tests")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--work", type=Path, help="directory for tokens and checkpoints (default: a temporary one)")
    parser.add_argument("--studies", nargs="+", default=[*STUDIES, "speed"], choices=[*STUDIES, "speed"])
    parser.add_argument("--methods", nargs="+", default=[], choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8192, help="tokens")
    parser.add_argument("--warmup", type=int, default=250)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--average", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="other options of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time after which no run is started")
    parser.add_argument("--speed-models", nargs="+", default=["small", "base"], choices=["small", "base", "big"])
    parser.add_argument("--speed-steps", type=int, default=30)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    recipe = {name: getattr(args, name) for name in ("steps", "batch_size", "warmup", "dropout", "average")}
    recipe |= {name: json.loads(value) for name, _, value in (text.partition("=") for text in args.set)}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    work_dir = args.work or Path(tempfile.mkdtemp())
    start = time.perf_counter()
    studies = [study for study in args.studies if study != "speed"]
    jobs = list(pending_jobs(studies, args.methods, args.seeds, recipe, lines))
    for pairs in {job["pairs"] for job in jobs} | ({"en-de"} if "speed" in args.studies else set()):
        tokenize_pairs(args.data, work_dir, pairs, recipe)
    print(f"{len(jobs)} runs, {args.jobs} at a time; tokenized in {time.perf_counter() - start:.0f} s", flush=True)
    deadline = time.time() + args.seconds
    with path.open("a") as log:

        def add_line(line: Job) -> None:
            if "translations" in line:
                texts = [" ".join(text.split("\n")) for text in line.pop("translations")]
                translations_path(args.out, line).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
            log.flush()
            lines.append(line)
            summary = {name: value for name, value in line.items() if name not in ("recipe", "signature")}
            print(f"{time.perf_counter() - start:.0f} s {summary}", flush=True)

        with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
            for future in as_completed([pool.submit(run_before, deadline, job, work_dir) for job in jobs]):
                line = future.result()
                if line is not None:
                    add_line(line)
        if "speed" in args.studies and not any(line["study"] == "speed" for line in lines):
            for line in measure_speed(work_dir, recipe, args.speed_models, args.speed_steps):
                add_line(line)
    text = build_report(lines, args.data, args.out)
    (args.out / "translation.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
