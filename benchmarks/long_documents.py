"""Study of long documents: which way of reading texts above 512 tokens gives the best classifier, and at what cost.

    python benchmarks/long_documents.py --model MODEL_DIR --data reviews.csv --out long.jsonl --jobs 8
    python benchmarks/long_documents_report.py long.jsonl --out results

The learning rate of each method and length is tuned on dev by the same grid, with seeds of its own. Then each is
trained with --seeds seeds. A seed also draws train and dev, the same for all methods; the test split is always the
same. Every finished run is a line of the output. The same command continues a study that was interrupted. It needs
torch, transformers and scikit-learn, and of headwise only the extra hf.
"""

import argparse
import csv
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headwise as hw
from headwise.scheme_names import RETROFIT_RATE_FACTOR

#: The number of tokens that the pretrained model reads.
BASE_LENGTH = 512
#: Seeds of the tuning start here, so that they differ from those of the study.
FIRST_TUNING_SEED = 1000


class Method(NamedTuple):
    """How a method reads long texts.

    Args:
        positions: how positions are extended; None for methods that read 512 tokens at a time.
        encode: `truncate`, `head-tail` or `windows`.
        scheme: the scheme that is retrofitted.
        is_adapted: whether the model is the one of --adapted, a result of `headwise adapt`.
    """

    positions: str | None = None
    encode: str = "truncate"
    scheme: Any = None
    is_adapted: bool = False


METHODS = {
    "tfidf": Method(),
    "truncate": Method(),
    "head-tail": Method(encode="head-tail"),
    "windows": Method(encode="windows"),
    "tile": Method("tile"),
    "interpolate": Method("interpolate"),
    "repeat-last": Method("repeat-last"),
    "tile+relative": Method("tile", scheme="RelativePositions"),
    "tile+distance": Method("tile", scheme="DistanceAware"),
    "adapt": Method("tile", is_adapted=True),
}


@dataclass(frozen=True)
class Settings:
    """Everything besides the trial that a result depends on."""

    model: str
    adapted: str
    data: str
    min_tokens: int
    train_rows: int
    dev_rows: int
    test_rows: int
    epochs: int
    batch_size: int
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """One training run. Tuning trials are evaluated on dev, others on dev and test."""

    method: str
    length: int
    rate: float
    seed: int

    @property
    def is_tuning(self) -> bool:
        return self.seed >= FIRST_TUNING_SEED


class Data(NamedTuple):
    """Texts above the minimum length, their labels and their tokens without special ones."""

    texts: list[str]
    labels: np.ndarray[Any, Any]
    tokens: list[list[int]]
    tokenizer: Any


@cache
def load_data(settings: Settings) -> Data:
    """Read the columns text and label of a CSV file, and keep texts with more tokens than the minimum."""
    csv.field_size_limit(2**24)
    with open(settings.data, newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file) if row["text"] and row["text"].strip()]
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    texts = [text for text, _ in rows]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    kept = [index for index, row in enumerate(ids) if len(row) > settings.min_tokens]
    names = sorted({label for _, label in rows})
    labels = np.array([names.index(rows[index][1]) for index in kept])
    return Data([texts[i] for i in kept], labels, [ids[i] for i in kept], tokenizer)


def split(settings: Settings, data: Data, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the rows of train, dev and test. The test split is the same for all seeds."""
    sizes = settings.test_rows, settings.dev_rows, settings.train_rows
    if sum(sizes[:2]) >= len(data.texts):
        sys.exit(f"{settings.data}: {len(data.texts)} texts have more than {settings.min_tokens} tokens, too few")
    test, rest = np.split(np.random.default_rng(0).permutation(len(data.texts)), sizes[:1])
    dev, train, _ = np.split(np.random.default_rng(seed).permutation(rest), np.cumsum(sizes[1:]))
    return {"train": train, "dev": dev, "test": test}


def encode(data: Data, rows: Any, method: Method, length: int) -> tuple[list[list[int]], list[int]]:
    """Return the inputs of a model, one or several for each row, and the index of each input's row in `rows`."""
    room = length - 2
    inputs, owners = [], []
    for owner, row in enumerate(rows):
        tokens = data.tokens[row]
        parts = [tokens[:room]]
        if method.encode == "head-tail" and len(tokens) > room:
            parts = [tokens[: room // 4] + tokens[len(tokens) - (room - room // 4) :]]
        elif method.encode == "windows":
            step = room - room // 4
            parts = [tokens[start : start + room] for start in range(0, max(1, len(tokens) - room // 4), step)]
        inputs += [[data.tokenizer.cls_token_id, *part, data.tokenizer.sep_token_id] for part in parts]
        owners += [owner] * len(parts)
    return inputs, owners


def build_model(settings: Settings, trial: Trial, num_labels: int) -> Any:
    """Load the model, extend it to the length of the trial, and retrofit its scheme."""
    method = METHODS[trial.method]
    torch.manual_seed(trial.seed)
    path = settings.adapted if method.is_adapted else settings.model
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=num_labels, dtype=torch.float32)
    if method.positions is not None and trial.length > model.config.max_position_embeddings:
        hw.extend_positions(model, trial.length, positions=method.positions)  # type: ignore[arg-type]
    if method.scheme is not None:
        hw.retrofit(model, method.scheme)
    return model


def batches(inputs: Sequence[Sequence[int]], size: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Yield the indices of an epoch's batches, of inputs of similar length."""
    order = generator.permutation(len(inputs))
    groups = [order[start : start + 20 * size] for start in range(0, len(order), 20 * size)]
    by_length = np.concatenate([sorted(group, key=lambda index: len(inputs[index])) for group in groups])
    starts = generator.permutation(np.arange(0, len(order), size))
    yield from ([int(index) for index in by_length[start : start + size]] for start in starts)


def collate(inputs: Sequence[Sequence[int]], padding_id: int, device: str) -> dict[str, Tensor]:
    """Return a padded batch on a device."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in inputs], batch_first=True, padding_value=padding_id)
    lengths = torch.tensor([len(x) for x in inputs])
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def precision(device: str) -> Any:
    """Return the context of a forward pass: bfloat16 on a GPU."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def evaluate(model: Any, data: Data, rows: Any, method: Method, length: int, size: int, device: str) -> float:
    """Return the accuracy; the scores of a row are the mean over its inputs."""
    inputs, owners = encode(data, rows, method, length)
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
    scores = np.zeros((len(rows), model.config.num_labels))
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), 2 * size):
            indices = order[start : start + 2 * size]
            with precision(device):
                logits = model(**collate([inputs[i] for i in indices], data.tokenizer.pad_token_id, device)).logits
            np.add.at(scores, [owners[i] for i in indices], logits.float().cpu().numpy())
    means = scores / np.bincount(owners)[:, None]
    return float((means.argmax(axis=1) == data.labels[rows]).mean())


def run_transformer(settings: Settings, trial: Trial) -> dict[str, float]:
    """Fine-tune a model and return its accuracy and cost."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, method = load_data(settings), METHODS[trial.method]
    rows = split(settings, data, trial.seed)
    model = build_model(settings, trial, int(data.labels.max()) + 1).to(device)
    new = set(hw.scheme_parameters(model))
    groups = [
        {"params": [p for p in model.parameters() if p not in new], "lr": trial.rate},
        {"params": sorted(new, key=lambda p: p.numel()), "lr": trial.rate * RETROFIT_RATE_FACTOR},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    inputs, owners = encode(data, rows["train"], method, trial.length)
    labels = torch.from_numpy(data.labels[rows["train"]])[owners]
    total = settings.epochs * math.ceil(len(inputs) / settings.batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / max(1, 0.1 * total), (total - step) / (0.9 * total))
    )
    generator = np.random.default_rng(trial.seed)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start, model = time.perf_counter(), model.train()
    for _ in range(settings.epochs):
        for indices in batches(inputs, settings.batch_size, generator):
            batch = collate([inputs[i] for i in indices], data.tokenizer.pad_token_id, device)
            with precision(device):
                logits = model(**batch).logits
            loss = torch.nn.functional.cross_entropy(logits.float(), labels[indices].to(device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    splits = ["dev"] if trial.is_tuning else ["dev", "test"]
    arguments = method, trial.length, settings.batch_size, device
    accuracy = {name: evaluate(model, data, rows[name], *arguments) for name in splits}
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else float("nan")
    return accuracy | {"loss": float(loss), "seconds": seconds, "peak_mib": peak}


def run_tfidf(settings: Settings, trial: Trial) -> dict[str, float]:
    """Train TF-IDF with logistic regression, whose C has the place of the learning rate."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = load_data(settings)
    rows = split(settings, data, trial.seed)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    model, start = make_pipeline(vectorizer, LogisticRegression(C=trial.rate, max_iter=1000)), time.perf_counter()
    model.fit([data.texts[i] for i in rows["train"]], data.labels[rows["train"]])
    seconds = time.perf_counter() - start
    splits = ["dev"] if trial.is_tuning else ["dev", "test"]
    return {name: model.score([data.texts[i] for i in rows[name]], data.labels[rows[name]]) for name in splits} | {
        "seconds": seconds
    }


def run_trial(settings: Settings, trial: Trial) -> dict[str, float]:
    """Run a trial in a worker process."""
    return run_tfidf(settings, trial) if trial.method == "tfidf" else run_transformer(settings, trial)


def start_worker(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    transformers.logging.set_verbosity_error()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def cells(methods: Sequence[str], lengths: Sequence[int]) -> list[tuple[str, int]]:
    """Return the methods with the lengths at which each is trained."""
    result = []
    for name in methods:
        method = METHODS[name]
        if method.positions is None:
            result.append((name, BASE_LENGTH))
        else:  # at 512 tokens, an extension alone changes nothing
            is_changed = method.scheme is not None or method.is_adapted
            result += [(name, length) for length in lengths if length > BASE_LENGTH or is_changed]
    return result


def read_results(path: Path, settings: Settings) -> dict[Trial, dict[str, float]]:
    """Read the finished trials. A last line that was cut off is ignored."""
    results = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["settings"] != json.loads(json.dumps(asdict(settings))):
            sys.exit(f"{path}: contains results of other settings; choose another --out")
        results[Trial(**record["trial"])] = record["result"]
    return results


def choose_rate(results: dict[Trial, dict[str, float]], method: str, length: int, rates: Sequence[float]) -> float:
    """Return the rate with the best mean accuracy on dev over the seeds of the tuning."""

    def score(rate: float) -> float:
        keys = [t for t in results if (t.method, t.length, t.rate) == (method, length, rate) and t.is_tuning]
        return float(np.mean([results[key]["dev"] for key in keys]))

    return max(rates, key=score)


def rates_of(method: str, settings: Settings) -> tuple[float, ...]:
    """Return the grid of a method: learning rates, or for TF-IDF as many values of C."""
    return tuple(10.0**i for i in range(len(settings.rates))) if method == "tfidf" else settings.rates


def run_study(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run all trials that are not finished, as many at a time as there are jobs."""
    end = time.monotonic() + 60 * arguments.minutes
    study = cells(arguments.methods, arguments.lengths)
    results = read_results(arguments.out, settings)
    context, threads = get_context("spawn"), max(1, (os.cpu_count() or 1) // arguments.jobs)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        arguments.out.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(arguments.jobs, context, start_worker, (threads,)) as pool,
    ):
        for is_tuning in (True, False):
            seeds = range(arguments.seeds)
            if is_tuning:
                seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + arguments.tuning_seeds)
            trials = []
            for method, length in study:
                rates = rates_of(method, settings)
                rates = rates if is_tuning else (choose_rate(results, method, length, rates),)
                trials += [Trial(method, length, rate, seed) for seed in seeds for rate in rates]
            waiting = [trial for trial in trials if trial not in results][::-1]
            running: dict[Future[dict[str, float]], Trial] = {}
            while running or (waiting and time.monotonic() < end):
                while waiting and len(running) < arguments.jobs and time.monotonic() < end:
                    trial = waiting.pop()
                    running[pool.submit(run_trial, settings, trial)] = trial
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    trial = running.pop(future)
                    results[trial] = future.result()
                    record = {"settings": asdict(settings), "trial": asdict(trial), "result": results[trial]}
                    file.write(json.dumps(record) + "\n")
                    file.flush()
                    print(f"{trial.method}@{trial.length} rate {trial.rate:g} seed {trial.seed}: {results[trial]}")
            if waiting:
                print(f"{len(waiting)} trials of this stage remain; the same command continues")
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each finished trial")
    parser.add_argument("--model", required=True, help="directory of a BERT-like model with 512 positions")
    parser.add_argument("--adapted", default="", help="directory of the same model after headwise adapt")
    parser.add_argument("--data", required=True, help="CSV file with the columns text and label")
    parser.add_argument("--min-tokens", type=int, default=600, help="use texts with more word pieces only")
    parser.add_argument("--train-rows", type=int, default=1400)
    parser.add_argument("--dev-rows", type=int, default=300)
    parser.add_argument("--test-rows", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-5, 5e-5, 1e-4, 2e-4], help="the grid")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[name for name in METHODS if name != "adapt"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial after this time")
    arguments = parser.parse_args()
    if "adapt" in arguments.methods and not arguments.adapted:
        parser.error("the method adapt requires --adapted")
    settings = {name: getattr(arguments, name) for name in Settings.__dataclass_fields__}
    run_study(arguments, Settings(**settings | {"rates": tuple(arguments.rates)}))


if __name__ == "__main__":
    main()
