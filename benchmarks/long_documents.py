"""Study of long documents: which way of reading texts above 512 tokens gives the best classifier, and at what cost.

    python benchmarks/prepare_long_documents.py DATA_DIR --model MODEL_DIR --out long
    python benchmarks/long_documents.py --model MODEL_DIR --data long/imdb.csv --out imdb.jsonl --jobs 8
    python benchmarks/long_documents.py --model MODEL_DIR --data long/imdb.csv --out imdb.jsonl --cost  # alone on a GPU
    python benchmarks/long_documents_report.py imdb.jsonl --out results

A cell is a method and a number of tokens, such as tile@1024. The learning rate of each cell is tuned on dev by the same
grid, with seeds of its own. Then each is trained with --seeds seeds. A seed also draws train and dev, the same for all
cells; the test split is always the same. Every finished run is a line of the output. The same command continues a study
that was interrupted. With --cost, the time and memory of training are measured instead, one cell after another. It
needs torch, transformers and scikit-learn, and of headwise only the extra hf.
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
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headwise as hw
from headwise.scheme_names import RETROFIT_RATE_FACTOR

#: The number of tokens that the pretrained model reads.
BASE_LENGTH = 512
#: Batches of a measurement of the cost: before it, and during it.
WARM_UP_BATCHES, TIMED_BATCHES = 4, 20

#: The cells of a study, by default.
CELLS = (
    *("tfidf@512", "truncate@512", "head-tail@512", "windows@512", "tile+distance@512", "tile+relative@512"),
    *("tile@1024", "interpolate@1024", "repeat-last@1024", "tile+distance@1024", "tile+relative@1024"),
    *("tile@2048", "interpolate@2048", "tile+distance@2048", "tile+relative@2048"),
)
#: The values of C of the logistic regression after TF-IDF.
TFIDF_GRID = (1.0, 10.0, 100.0, 1000.0)

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
    """Texts above the minimum length, their labels and their tokens without special ones.

    Of text pairs, `texts` and `tokens` are the second text, which is truncated if the pair is too long.
    """

    texts: list[str]
    firsts: list[str]
    labels: np.ndarray[Any, Any]
    tokens: list[list[int]]
    first_tokens: list[list[int]]
    tokenizer: Any

    def groups(self) -> list[np.ndarray[Any, Any]]:
        """Return the rows that belong to the same split: pairs with the same first text, or one text."""
        if not any(self.firsts):
            return [np.array([row]) for row in range(len(self.texts))]
        rows: dict[str, list[int]] = {}
        for row, first in enumerate(self.firsts):
            rows.setdefault(first, []).append(row)
        return [np.array(group) for group in rows.values()]


@cache
def load_data(settings: Settings) -> Data:
    """Read the columns text, label and, for pairs, first of a CSV file. Short texts and duplicates are left out."""
    csv.field_size_limit(2**24)
    with open(settings.data, newline="", encoding="utf-8") as file:
        found = {(row.get("first") or "", row["text"]): row["label"] for row in csv.DictReader(file)}
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    rows = [(*texts, label) for texts, label in found.items() if texts[1].strip()]
    firsts, texts, labels = (list(column) for column in zip(*rows, strict=True))
    ids, first_ids = (tokenizer(x, add_special_tokens=False, verbose=False)["input_ids"] for x in (texts, firsts))
    kept = [index for index, row in enumerate(ids) if len(row) > settings.min_tokens]
    names = sorted(set(labels))
    return Data(
        [texts[i] for i in kept],
        [firsts[i] for i in kept],
        np.array([names.index(labels[i]) for i in kept]),
        [ids[i] for i in kept],
        [first_ids[i] for i in kept],
        tokenizer,
    )


def split(settings: Settings, data: Data, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the rows of train, dev and test. The test split is the same for all seeds."""
    groups = data.groups()
    if settings.test_rows + settings.dev_rows >= len(groups):
        sys.exit(f"{settings.data}: {len(groups)} texts have more than {settings.min_tokens} tokens, too few")
    test, rest = np.split(np.random.default_rng(0).permutation(len(groups)), [settings.test_rows])
    ends = np.cumsum([settings.dev_rows, settings.train_rows])
    dev, train, _ = np.split(np.random.default_rng(seed).permutation(rest), ends)
    parts = {"train": train, "dev": dev, "test": test}
    return {name: np.concatenate([groups[index] for index in part]) for name, part in parts.items()}


def encode(data: Data, rows: Any, method: Method, length: int) -> tuple[list[list[int]], list[int]]:
    """Return the inputs of a model, one or several for each row, and the index of each input's row in `rows`."""
    start_id, end_id = data.tokenizer.cls_token_id, data.tokenizer.sep_token_id
    inputs, owners = [], []
    for owner, row in enumerate(rows):
        first, tokens = data.first_tokens[row], data.tokens[row]
        prefix = [start_id, *first, end_id] if first else [start_id]
        room = length - len(prefix) - 1
        parts = [tokens[:room]]
        if method.encode == "head-tail" and len(tokens) > room:
            parts = [tokens[: room // 4] + tokens[len(tokens) - (room - room // 4) :]]
        elif method.encode == "windows":
            step = room - room // 4
            parts = [tokens[start : start + room] for start in range(0, max(1, len(tokens) - room // 4), step)]
        inputs += [[*prefix, *part, end_id] for part in parts]
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


def collate(inputs: Sequence[Sequence[int]], tokenizer: Any, device: str) -> dict[str, Tensor]:
    """Return a padded batch on a device. Tokens after the first separator are of the second text."""
    rows = [torch.tensor(x) for x in inputs]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    mask = (torch.arange(ids.shape[1]) < torch.tensor([len(x) for x in inputs])[:, None]).long()
    is_end = (ids == tokenizer.sep_token_id).long()
    types = (is_end.cumsum(dim=1) > is_end).long() * mask
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: tensor.to(device) for name, tensor in batch.items()}


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
                logits = model(**collate([inputs[i] for i in indices], data.tokenizer, device)).logits
            np.add.at(scores, [owners[i] for i in indices], logits.float().cpu().numpy())
    means = scores / np.bincount(owners)[:, None]
    return float((means.argmax(axis=1) == data.labels[rows]).mean())


class Training:
    """The training of a cell: its model, inputs and optimizer."""

    def __init__(self, settings: Settings, trial: Trial) -> None:
        self.settings, self.trial, self.method = settings, trial, METHODS[trial.method]
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.data = load_data(settings)
        self.rows = split(settings, self.data, trial.seed)
        self.model = build_model(settings, trial, int(self.data.labels.max()) + 1).to(self.device).train()
        self.inputs, owners = encode(self.data, self.rows["train"], self.method, trial.length)
        self.labels = torch.from_numpy(self.data.labels[self.rows["train"]])[owners]
        new = set(hw.scheme_parameters(self.model))
        groups = [
            {"params": [p for p in self.model.parameters() if p not in new], "lr": trial.rate},
            {"params": sorted(new, key=lambda p: p.numel()), "lr": trial.rate * RETROFIT_RATE_FACTOR},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], weight_decay=0.0, fused=self.device == "cuda"
        )
        total = settings.epochs * math.ceil(len(self.inputs) / settings.batch_size)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / max(1, 0.1 * total), (total - step) / (0.9 * total))
        )
        self.generator = np.random.default_rng(trial.seed)

    def batches(self) -> Iterator[list[int]]:
        """Yield the indices of the inputs of an epoch's batches."""
        yield from batches(self.inputs, self.settings.batch_size, self.generator)

    def step(self, indices: list[int]) -> Tensor:
        """Train on a batch and return its loss."""
        batch = collate([self.inputs[i] for i in indices], self.data.tokenizer, self.device)
        with precision(self.device):
            logits = self.model(**batch).logits
        loss = nn.functional.cross_entropy(logits.float(), self.labels[indices].to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()


def run_transformer(settings: Settings, trial: Trial) -> dict[str, float]:
    """Fine-tune a model and return its accuracy."""
    training = Training(settings, trial)
    loss = torch.tensor(float("nan"))
    for _ in range(settings.epochs):
        for indices in training.batches():
            loss = training.step(indices)
    arguments = training.method, trial.length, settings.batch_size, training.device
    splits = ["dev"] if trial.is_tuning else ["dev", "test"]
    accuracy = {name: evaluate(training.model, training.data, training.rows[name], *arguments) for name in splits}
    return accuracy | {"loss": float(loss)}


def measure_cost(settings: Settings, method: str, length: int) -> dict[str, float]:
    """Return the milliseconds of training for each text, and the peak memory."""
    training = Training(settings, Trial(method, length, settings.rates[0], 0))
    order = list(training.batches())
    for indices in order[:WARM_UP_BATCHES]:
        training.step(indices)
    is_cuda = training.device == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    timed = order[WARM_UP_BATCHES : WARM_UP_BATCHES + TIMED_BATCHES]
    start = time.perf_counter()
    for indices in timed:
        training.step(indices)
    if is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    inputs_per_text = len(training.inputs) / len(training.rows["train"])
    num_inputs = sum(map(len, timed))
    peak = torch.cuda.max_memory_allocated() / 2**20 if is_cuda else float("nan")
    return {"ms_per_text": 1000 * seconds / num_inputs * inputs_per_text, "peak_mib": peak}


def run_tfidf(settings: Settings, trial: Trial) -> dict[str, float]:
    """Train TF-IDF with logistic regression, whose C has the place of the learning rate."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    data = load_data(settings)
    rows = split(settings, data, trial.seed)
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    model = make_pipeline(vectorizer, LogisticRegression(C=trial.rate, max_iter=1000))

    def texts(name: str) -> list[str]:
        return [f"{data.firsts[i]} {data.texts[i]}" for i in rows[name]]

    model.fit(texts("train"), data.labels[rows["train"]])
    splits = ["dev"] if trial.is_tuning else ["dev", "test"]
    return {name: model.score(texts(name), data.labels[rows[name]]) for name in splits}


def run_trial(settings: Settings, trial: Trial) -> dict[str, float]:
    """Run a trial in a worker process."""
    return run_tfidf(settings, trial) if trial.method == "tfidf" else run_transformer(settings, trial)


def start_worker(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    transformers.logging.set_verbosity_error()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def parse_cell(text: str) -> tuple[str, int]:
    """Return the method and the number of tokens of a cell.

    Example:
        >>> parse_cell("tile@1024")
        ('tile', 1024)
    """
    method, _, length = text.partition("@")
    if method not in METHODS or not length.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not METHOD@TOKENS with one of the methods {', '.join(METHODS)}")
    if METHODS[method].positions is None and int(length) != BASE_LENGTH:
        raise argparse.ArgumentTypeError(f"{text}: {method} reads {BASE_LENGTH} tokens at a time")
    return method, int(length)


def identify(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with names instead of paths, so that a study can be continued on another machine."""
    return settings | {name: Path(settings[name]).name for name in ("model", "adapted", "data")}


def read_results(path: Path, settings: Settings) -> dict[Trial, dict[str, float]]:
    """Read the finished trials. A last line that was cut off is ignored."""
    results = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "trial" not in record:
            continue  # a cost
        if identify(record["settings"]) != identify(json.loads(json.dumps(asdict(settings)))):
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
    """Return the grid of a method: learning rates, or values of C for TF-IDF."""
    return TFIDF_GRID if method == "tfidf" else settings.rates


def run_study(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run all trials that are not finished, as many at a time as there are jobs."""
    end = time.monotonic() + 60 * arguments.minutes
    results = read_results(arguments.out, settings)
    context, threads = get_context("spawn"), max(1, (os.cpu_count() or 1) // arguments.jobs)
    with (
        arguments.out.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(arguments.jobs, context, start_worker, (threads,)) as pool,
    ):
        for is_tuning in (True, False):
            seeds = range(arguments.seeds)
            if is_tuning:
                seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + arguments.tuning_seeds)
            trials = []
            for method, length in arguments.cells:
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
                    record = {"settings": identify(asdict(settings)), "trial": asdict(trial), "result": results[trial]}
                    file.write(json.dumps(record) + "\n")
                    file.flush()
                    print(f"{trial.method}@{trial.length} rate {trial.rate:g} seed {trial.seed}: {results[trial]}")
            if waiting:
                print(f"{len(waiting)} trials of this stage remain; the same command continues")
                return


def measure_costs(arguments: argparse.Namespace, settings: Settings) -> None:
    """Measure the cells one after another, and append a line for each."""
    start_worker(max(1, os.cpu_count() or 1))
    for method, length in arguments.cells:
        if method == "tfidf":
            continue
        cost = measure_cost(settings, method, length)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cost": {"method": method, "length": length} | cost}) + "\n")
        print(f"{method}@{length}: {cost['ms_per_text']:.2f} ms for each text, {cost['peak_mib']:.0f} MiB", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one for each finished trial")
    parser.add_argument("--model", required=True, help="directory of a BERT-like model with 512 positions")
    parser.add_argument("--adapted", default="", help="directory of the same model after headwise adapt")
    parser.add_argument("--data", required=True, help="CSV file with the columns text, label and, for pairs, first")
    parser.add_argument("--min-tokens", type=int, default=600, help="use texts with more word pieces only")
    parser.add_argument("--train-rows", type=int, default=1400, help="of pairs: number of first texts")
    parser.add_argument("--dev-rows", type=int, default=300)
    parser.add_argument("--test-rows", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rates", type=float, nargs="+", default=[4e-5, 1e-4, 2.5e-4], help="the grid")
    parser.add_argument(
        "--cells", nargs="+", type=parse_cell, metavar="METHOD@TOKENS", help=f"default: {' '.join(CELLS)}"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tuning-seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial after this time")
    parser.add_argument("--cost", action="store_true", help="measure the time and memory of training instead")


def read_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the command line."""
    settings = {name: getattr(arguments, name) for name in Settings.__dataclass_fields__}
    return Settings(**settings | {"rates": tuple(arguments.rates)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    arguments = parser.parse_args()
    arguments.cells = arguments.cells or [parse_cell(text) for text in CELLS]
    if any(METHODS[method].is_adapted for method, _ in arguments.cells) and not arguments.adapted:
        parser.error("the method adapt requires --adapted")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    (measure_costs if arguments.cost else run_study)(arguments, read_settings(arguments))


if __name__ == "__main__":
    main()
