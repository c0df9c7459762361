"""Shaw et al.'s three tables, longer sentences than were learnt, and speed, on Multi30k.

    python benchmarks/translation.py --data multi30k --out FOLDER --jobs 12

Every run is a `headwise train --task translation --model small`, and a line of `runs.jsonl` in the end; those that are
there are not run again. Pairs are tokenised once, for all runs. The report is `translation.md`, with `lengths.png`;
what was said is in `translations`.
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

TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
SHORT = 10  # words
LOOKS = 8  # at dev, and checkpoints: fewer than usual, as runs share a disk
BUCKETS = {"1–10": (1, 10), "11–12": (11, 12), "13–15": (13, 15), "16–20": (16, 20), "over 20": (21, 999)}

#: What each method is told.
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
FOUR = ("absolute", "relative", "both", "none")
#: Studies in order of their weight: which pairs, and which methods.
STUDIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "table1": ("en-de", (*FOUR, "distance-aware", "TENER")),
    "table2": ("en-de", ("k=0", "k=2", "k=1", "k=4", "k=64", "k=256")),
    "table3": ("en-de", ("keys only", "values only")),
    "lengths": ("short", ("absolute", "relative", "distance-aware")),
    "french": ("en-fr", FOUR),
}
SPEED = {name: METHODS[name] for name in ("absolute", "relative", "both", "none", "distance-aware", "TENER")} | {
    "Transformer-XL": {"scheme": "transformer-xl"}
}


def settings_of(job: Job, work: Path) -> TranslationConfig:
    target = "fr" if job["pairs"] == "en-fr" else "de"
    return TranslationConfig(
        data=(str(work / job["pairs"]),),
        source="en",
        target=target,
        model="small",
        vocabulary=8192,
        patience=10**6,
        seed=job["seed"],
        **job["recipe"],
        **METHODS[job["method"]],
    )


def write_pairs(data: Path, work: Path, pairs: str) -> None:
    """Line-aligned files of one set of pairs: train, val and test 2016; or short ones, and all tests as one."""
    folder = work / pairs
    folder.mkdir(parents=True)
    target = "fr" if pairs == "en-fr" else "de"
    both = {
        split: list(zip(*(read(data / f"{split}.{language}.gz") for language in ("en", target)), strict=True))
        for split in ("train", "val", *TESTS)
    }
    found = {"train": both["train"], "val": both["val"], "test": both[TESTS[0]]}
    if pairs == "short":
        found = {split: [pair for pair in both[split] if words(pair[0]) <= SHORT] for split in ("train", "val")}
        found["test"] = [pair for split in TESTS for pair in both[split]]
    for split, rows in found.items():
        for side, language in enumerate(("en", target)):
            (folder / f"{split}.{language}").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")


def read(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def words(text: str) -> int:
    return len(text.split())


class TokenizedPipeline(TranslationPipeline):
    """A pipeline whose pairs are tokenized already."""

    def __init__(self, config: TranslationConfig, tokens_dir: Path) -> None:
        super().__init__(config)
        self.tokens_dir = tokens_dir

    def build(self, data: TranslationData, scratch_dir: Path) -> TranslationBundle:
        return self.build_from_tokens(data, self.tokens_dir)


def run(job: Job, work: Path) -> dict[str, Any]:
    """One run: trained, judged, and its translations kept."""
    torch.set_num_threads(1)
    pipeline.NUM_EVALUATIONS = LOOKS
    out = Path(tempfile.mkdtemp(dir=work))
    with quiet_libraries(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        runner = TokenizedPipeline(settings_of(job, work), work / f"{job['pairs']}.tokens")
        found = runner.run(out, resume=False)
    rows = pq.read_table(out / "predictions.parquet").to_pylist()
    shutil.rmtree(out)
    tested = [row for row in rows if row["split"] == "test"]
    line = {name: job[name] for name in ("study", "pairs", "method", "seed", "recipe")} | {
        "bleu": found["metrics"]["test"]["bleu"],
        "chrf": found["metrics"]["test"]["chrf"],
        "dev bleu": found["metrics"]["dev"]["bleu"],
        "dev loss": found["dev_loss"],
        "steps": found["steps"],
        "epochs": found["epochs"],
        "train_seconds": found["train_seconds"],
        "sentences per second": found["decoding"]["sentences_per_second"],
        "parameters": found["parameters"],
        "signature": found["signatures"]["bleu"],
        "translations": [row["predicted"] for row in tested],
    }
    if job["study"] == "lengths":
        line["buckets"] = {name: in_bucket(tested, *limits) for name, limits in BUCKETS.items()}
    return line


def in_bucket(rows: Sequence[dict[str, str]], least: int, most: int) -> float:
    """BLEU of the sentences whose source has so many words."""
    chosen = [row for row in rows if least <= words(row["source"]) <= most]
    return metrics.compute([row["predicted"] for row in chosen], [row["reference"] for row in chosen])["bleu"]


def jobs(studies: Sequence[str], methods: Sequence[str], seeds: int, recipe: Job, done: list[Job]) -> Iterator[Job]:
    """Those to do: all of a seed before the next one."""
    finished = {
        (line["study"], line["method"], line["seed"], json.dumps(line["recipe"]))
        for line in done
        if line["study"] != "speed"
    }
    for seed in range(seeds):
        for study in studies:
            pairs, own = STUDIES[study]
            for method in own:
                key = (study, method, seed, json.dumps(recipe))
                if method in (methods or own) and key not in finished:
                    yield {"study": study, "pairs": pairs, "method": method, "seed": seed, "recipe": recipe}


def limited(latest: float, job: Job, work: Path) -> dict[str, Any] | None:
    """A run, unless it is too late to begin one."""
    return None if time.time() > latest else run(job, work)


# Speed: the same batches for each scheme, alone on the device.


def speed(work: Path, recipe: Job, models: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for size in models:
        for round_ in range(2):  # in turn, twice, so that no scheme has the better half of the time
            for method, options in SPEED.items():
                job = {"pairs": "en-de", "method": "absolute", "seed": 0, "recipe": recipe}
                pairs = load_data(settings_of(job, work)).pairs
                tokenizer, tokens = open_tokens(pairs, work / "en-de.tokens")
                told: Job = {"data": (str(work / "en-de"),), "source": "en", "target": "de", "model": size}
                model: Any = build_model(TranslationConfig(**told, **options), tokenizer)
                model = model.to(device)
                line = {"study": "speed", "device": device_name(), "model": size, "method": method, "round": round_}
                learning = training_speed(model, tokens["train"], DEFAULTS[size].batch_size, steps)
                yield line | learning | decoding_speed(model, tokens["test"])


def training_speed(model: Any, tokens: TokenizedPairs, size: int, steps: int) -> dict[str, Any]:
    batches = TokenBatchSampler(tokens.source.lengths, tokens.target.lengths, size)
    config = model.config
    batched = TranslationDataset(
        tokens, model.device, decoder_start_id=config.decoder_start_token_id, pad_id=config.pad_token_id
    )
    data = [batched.__getitems__(rows) for rows, _ in zip(batches, range(steps), strict=False)]
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=model.device.type == "cuda")
    model.train()

    def step(batch: dict[str, Tensor]) -> None:
        with torch.autocast(model.device.type, torch.bfloat16):
            logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
        labels = batch["labels"].flatten()
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels, label_smoothing=0.1).backward()
        adam.step()
        adam.zero_grad()

    def learn() -> None:
        for batch in data:
            step(batch)

    learn()  # once for nothing: kernels are compiled and chosen
    seconds = timed(learn)
    count = sum(int((batch["labels"] != -100).sum()) for batch in data)
    return {"tokens per second": count / seconds, "ms per step": 1000 * seconds / len(data)}


def decoding_speed(model: Any, tokens: TokenizedPairs, length: int = 20) -> dict[str, Any]:
    """Test 2016 in one batch, each sentence `length` tokens, whatever the model, which has learnt nothing, says."""
    model.eval()
    padding = model.config.pad_token_id
    table = torch.from_numpy(tokens.source.pad(np.arange(len(tokens)), padding))
    batch = {"input_ids": table.to(model.device), "attention_mask": (table != padding).long().to(model.device)}

    def decode(beams: int) -> None:
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16):
            model.generate(**batch, num_beams=beams, min_new_tokens=length, max_new_tokens=length, do_sample=False)

    found = {}
    for beams in (1, 4):
        decode(beams)
        found[f"sentences per second, beam {beams}"] = len(table) / timed(partial(decode, beams))
    return found


def timed(action: Callable[[], Any]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    wait()
    start = time.perf_counter()
    action()
    wait()
    return time.perf_counter() - start


# The report.


def report(lines: list[Job], data: Path, out: Path) -> str:
    runs = [line for line in lines if line["study"] != "speed"]
    parts = ["# Translation on Multi30k\n"]
    references = read(data / f"{TESTS[0]}.de.gz")
    if runs:
        one = runs[-1]
        recipe = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one["recipe"].items())
        parts.append(
            f"Model small (about {one['parameters'] / 1e6:.1f} million parameters), 8,192 subwords, {recipe}; beam 4, "
            f"length penalty 0.6. BLEU of test 2016 by sacrebleu (`{one['signature']}`), "
            "mean ± standard deviation over seeds.\n"
        )
    parts += [
        table("Table 1: which positions, English → German", runs, "table1", STUDIES["table1"][1]),
        table("Table 1: which positions, English → French", runs, "french", FOUR),
        table("Table 2: clipping distance k", with_k_16(runs), "table2", [f"k={k}" for k in (0, 1, 2, 4, 16, 64, 256)]),
        table(
            "Table 3: vectors for keys and values",
            in_table3(runs),
            "table3",
            ("relative", "keys only", "values only", "none"),
        ),
        significance(runs, references, out),
        lengths(runs, out),
        speeds([line for line in lines if line["study"] == "speed"]),
    ]
    return "\n".join(part for part in parts if part)


def with_k_16(runs: list[Job]) -> list[Job]:
    """Table 1's relative positions are table 2's k = 16."""
    return runs + [
        line | {"study": "table2", "method": "k=16"}
        for line in runs
        if line["study"] == "table1" and line["method"] == "relative"
    ]


def in_table3(runs: list[Job]) -> list[Job]:
    """Table 1's relative positions have both vectors, and its none has neither."""
    return runs + [
        line | {"study": "table3"}
        for line in runs
        if line["study"] == "table1" and line["method"] in ("relative", "none")
    ]


def table(title: str, runs: list[Job], study: str, methods: Sequence[str]) -> str:
    rows = [f"## {title}\n", "| | BLEU | chrF | dev loss | seeds |", "|---|---|---|---|---|"]
    for method in methods:
        own = [line for line in runs if line["study"] == study and line["method"] == method]
        if own:
            cells = [spread([line[name] for line in own], digits) for name, digits in FIGURES.items()]
            rows.append(f"| {method} | {' | '.join(cells)} | {len(own)} |")
    return "\n".join(rows) + "\n" if len(rows) > 3 else ""


FIGURES = {"bleu": 2, "chrf": 2, "dev loss": 3}


def spread(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def significance(runs: list[Job], references: list[str], out: Path) -> str:
    """Each method against absolute positions with the same seed, by sacrebleu's paired bootstrap."""
    rows = [
        "## Against absolute positions\n",
        "| | difference in BLEU by seed | p by paired bootstrap |",
        "|---|---|---|",
    ]
    by = {(line["method"], line["seed"]): line for line in runs if line["study"] == "table1"}
    for method in STUDIES["table1"][1][1:]:
        pairs = [
            (by["absolute", seed], line)
            for (name, seed), line in by.items()
            if name == method and ("absolute", seed) in by
        ]
        if not pairs:
            continue
        found = [
            metrics.compare_systems({"a": said(out, one), "b": said(out, two)}, references)["b"]["p"]
            for one, two in pairs
        ]
        gains = ", ".join(f"{two['bleu'] - one['bleu']:+.2f}" for one, two in pairs)
        rows.append(f"| {method} | {gains} | {', '.join(f'{p:.3f}' for p in found)} |")
    return "\n".join(rows) + "\n" if len(rows) > 3 else ""


def said_in(out: Path, line: Job) -> Path:
    """The file of a run's translations."""
    folder = out / "translations"
    folder.mkdir(exist_ok=True)
    return folder / f"{line['study']} {line['method']} {line['seed']}.txt"


def said(out: Path, line: Job) -> list[str]:
    return said_in(out, line).read_text(encoding="utf-8").split("\n")[:-1]


def lengths(runs: list[Job], out: Path) -> str:
    own = [line for line in runs if line["study"] == "lengths"]
    if not own:
        return ""
    rows = [
        f"## Trained on sentences of at most {SHORT} words, tested by length\n",
        "| | " + " | ".join(BUCKETS) + " |",
        "|---|" + "---|" * len(BUCKETS),
    ]
    with plot_style(5.0, 3.2) as figure:
        axes: Any = figure.subplots()
        for number, method in enumerate(STUDIES["lengths"][1]):
            found = [[line["buckets"][name] for name in BUCKETS] for line in own if line["method"] == method]
            if found:
                cells = [spread(column, 1) for column in zip(*found, strict=True)]
                rows.append(f"| {method} | {' | '.join(cells)} |")
                how = {"color": PALETTE[number], "marker": MARKERS[number], "label": method, "capsize": 2}
                axes.errorbar(list(BUCKETS), np.mean(found, axis=0), yerr=np.std(found, axis=0), **how)
        axes.axvspan(-0.3, 0.3, color="#EEEEEE")
        axes.set(xlabel="words in the source; grey: lengths that were learnt", ylabel="BLEU", ylim=(0, None))
        axes.legend()
        save_figure(figure, out / "lengths.png")
    return "\n".join(rows) + "\n\n![BLEU by length](lengths.png)\n"


def speeds(lines: list[Job]) -> str:
    if not lines:
        return ""
    names = ("tokens per second", "sentences per second, beam 1", "sentences per second, beam 4")
    rows = ["## Speed\n", f"Target tokens learnt from, and sentences decoded to 20 tokens, {lines[0]['device']}.\n"]
    for size in dict.fromkeys(line["model"] for line in lines):
        rows += [f"| {size} | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
        best = {
            method: {
                name: max(line[name] for line in lines if (line["model"], line["method"]) == (size, method))
                for name in names
            }
            for method in dict.fromkeys(line["method"] for line in lines if line["model"] == size)
        }
        for method, found in best.items():
            cells = [f"{found[name]:,.0f} ({found[name] / best['absolute'][name]:.2f}×)" for name in names]
            rows.append(f"| {method} | {' | '.join(cells)} |")
        rows.append("")
    return "\n".join(rows)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="Multi30k: train.en.gz, train.de.gz, val, tests")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--work", type=Path, help="for tokens and checkpoints; by default a temporary folder")
    parser.add_argument("--studies", nargs="+", default=[*STUDIES, "speed"], choices=[*STUDIES, "speed"])
    parser.add_argument("--methods", nargs="+", default=[], choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8192, help="tokens")
    parser.add_argument("--warmup", type=int, default=250)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--average", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER", help="other settings of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes, which share the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--speed-models", nargs="+", default=["small", "base"], choices=["small", "base", "big"])
    parser.add_argument("--speed-steps", type=int, default=30)
    given = parser.parse_args()
    recipe = {name: getattr(given, name) for name in ("steps", "batch_size", "warmup", "dropout", "average")}
    recipe |= {name: json.loads(value) for name, _, value in (one.partition("=") for one in given.set)}
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "runs.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    work = given.work or Path(tempfile.mkdtemp())
    start = time.perf_counter()
    todo = list(jobs([one for one in given.studies if one != "speed"], given.methods, given.seeds, recipe, done))
    for pairs in {job["pairs"] for job in todo} | ({"en-de"} if "speed" in given.studies else set()):
        make_tokens(given.data, work, pairs, recipe)
    print(f"{len(todo)} runs, {given.jobs} at a time; tokens after {time.perf_counter() - start:.0f} s", flush=True)
    latest = time.time() + given.seconds
    with file.open("a") as log:

        def keep(line: Job) -> None:
            if "translations" in line:
                texts = [" ".join(text.split("\n")) for text in line.pop("translations")]
                said_in(given.out, line).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
            log.flush()
            done.append(line)
            told = {name: value for name, value in line.items() if name not in ("recipe", "signature")}
            print(f"{time.perf_counter() - start:.0f} s {told}", flush=True)

        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            for future in as_completed([pool.submit(limited, latest, job, work) for job in todo]):
                line = future.result()
                if line is not None:
                    keep(line)
        if "speed" in given.studies and not any(line["study"] == "speed" for line in done):
            for line in speed(work, recipe, given.speed_models, given.speed_steps):
                keep(line)
    written = report(done, given.data, given.out)
    (given.out / "translation.md").write_text(written, encoding="utf-8")
    print(written)


def make_tokens(data: Path, work: Path, pairs: str, recipe: Job) -> None:
    """The tokens of a set of pairs, unless they are there."""
    tokens = work / f"{pairs}.tokens"
    if not tokens.exists():
        write_pairs(data, work, pairs)
        settings = settings_of({"pairs": pairs, "method": "absolute", "seed": 0, "recipe": recipe}, work)
        with quiet_libraries():
            write_tokens(settings, load_data(settings).pairs, tokens)


if __name__ == "__main__":
    main()
