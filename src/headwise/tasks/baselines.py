"""Baselines of labeled rows, computed once for each data set and cached.

| labels | baselines |
|---|---|
| one class | the most frequent label; TF-IDF with logistic regression |
| several classes | always the same, most frequent labels; TF-IDF with logistic regression |
| a number | the mean; TF-IDF with ridge regression |
| tags | the most frequent tag of each word |
| ranking | the given order of candidates, if there is one; BM25 |
"""

import hashlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import datasets
import numpy as np
from datasets import Dataset
from filelock import FileLock, Timeout
from scipy.special import expit, logit

from headwise.errors import first_line
from headwise.tasks.fingerprint import hash_dataset
from headwise.tasks.metrics.labels import column_array, f1_from_counts, label_values
from headwise.tasks.metrics.thresholds import tune_thresholds
from headwise.tasks.task import Examples, Task

logger = logging.getLogger(__name__)

VERSION = 2  # of the stored metrics; a new version invalidates the cache

#: The columns that the baselines read.
COLUMNS = ("text", "pair", "words", "label", "query")

TAG_OF_WORD = "most frequent tag of each word"
BM25 = "BM25"


@dataclass(frozen=True)
class Baselines:
    """The baselines of some splits.

    Args:
        metrics: The metrics of each baseline by its name, for each split.
        notes: Remarks, such as that a baseline was fit on a subset of the training rows.
    """

    metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def compute_baselines(
    task: Task,
    examples: Examples,
    splits: Sequence[str] = ("dev", "test"),
    *,
    cache: Path | None = None,
    wait: bool = True,
) -> Baselines:
    """Compute the metrics of each baseline on splits, or read them from the cache.

    Of several processes that need the same baselines at the same time, one computes them and the others wait.

    Args:
        task: The task.
        examples: Its examples, with the split "train".
        splits: The splits to evaluate; those that the examples do not have are ignored.
        cache: The cache directory; by default a subdirectory of the cache of Hugging Face's datasets.
        wait: Whether to wait for another process that computes them; without it, there are then no baselines.

    Example:
        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"text": ["a good film", "good", "a bad film"], "label": [1, 1, 0]})
        >>> task = Task(name="reviews", label_type="classification", about="")
        >>> examples = Examples({"train": rows, "test": rows}, ("bad", "good"), "")
        >>> baselines = compute_baselines(task, examples)
        >>> {name: round(metrics["accuracy"], 2) for name, metrics in baselines.metrics["test"].items()}
        {'most frequent label': 0.67, 'TF-IDF + logistic regression': 0.67}
    """
    evaluated = {split: examples.splits[split] for split in splits if split in examples.splits}
    if not evaluated:
        return Baselines()
    path = cache_path(task, examples, evaluated, cache)
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(f"{path}.lock", timeout=-1 if wait else 0))
        except Timeout:
            return Baselines()
        except (OSError, NotImplementedError) as error:  # read-only, or a file system without locks
            logger.debug("%s: no lock (%s)", path, error)
        baselines = read_cache(path)
        if baselines is None:
            baselines = compute_uncached(task, examples, evaluated)
            write_cache(path, baselines)
        return baselines


def cache_path(task: Task, examples: Examples, evaluated: dict[str, Dataset], cache: Path | None) -> Path:
    """Return the path of cached baselines, which depends on the content of all rows."""
    directory = Path(datasets.config.HF_DATASETS_CACHE, "headwise") if cache is None else Path(cache)
    rows = {split: examples.splits[split] for split in ("train", "dev") if split in examples.splits} | evaluated
    hashes = {split: hash_dataset(split_rows, COLUMNS) for split, split_rows in rows.items()}
    key = (VERSION, task.label_type, examples.labels, examples.ordered_by, hashes, sorted(evaluated))
    return directory / "baselines" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"


def read_cache(path: Path) -> Baselines | None:
    """Read cached baselines; None if there are none, or the file is damaged."""
    try:
        return Baselines(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_cache(path: Path, baselines: Baselines) -> None:
    """Write baselines to the cache. If this fails, they are computed again next time."""
    temporary = path.with_suffix(f".{uuid4().hex}")
    try:
        temporary.write_text(json.dumps({"metrics": baselines.metrics, "notes": baselines.notes}), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("the baselines cannot be cached (%s: %s)", error.filename or path, error.strerror or error)
        with suppress(OSError):
            temporary.unlink()


def compute_uncached(task: Task, examples: Examples, evaluated: dict[str, Dataset]) -> Baselines:
    """Compute the metrics of each baseline."""
    baselines = Baselines({split: {} for split in evaluated})
    for name, score in iterate_baselines(task, examples, baselines.notes):
        for split, rows in evaluated.items():
            baselines.metrics[split][name] = task.metrics(score(rows), rows)
    return baselines


def iterate_baselines(task: Task, examples: Examples, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the name of each baseline and a function that computes the scores of rows. Notes are added."""
    train = examples.splits["train"]
    if task.label_type == "classification":
        counts = np.bincount(column_array(train, "label"), minlength=len(examples.labels))
        yield "most frequent label", lambda rows: np.broadcast_to(counts, (len(rows), len(counts)))
    elif task.label_type == "multi-label":
        answer = best_constant_labels(column_array(train, "label"))
        yield "most frequent labels", lambda rows: np.broadcast_to(np.where(answer, 1, -1), (len(rows), len(answer)))
    elif task.label_type == "regression":
        mean = column_array(train, "label").mean()
        yield "mean", lambda rows: np.full(len(rows), mean)
    elif task.label_type == "tokens":
        yield TAG_OF_WORD, tag_by_word(train, len(examples.labels))
    elif task.label_type == "ranking":
        if examples.ordered_by:
            yield examples.ordered_by, lambda rows: -np.arange(len(rows))
        if examples.ordered_by != BM25:
            yield BM25, score_bm25
    yield from iterate_tfidf(task, examples, notes)


def iterate_tfidf(task: Task, examples: Examples, notes: list[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the linear model of the task; rankings and tags have none."""
    from headwise.tasks import tfidf

    if task.label_type not in tfidf.NAMES:
        return
    name, train = tfidf.NAMES[task.label_type], examples.splits["train"]
    logger.info("computing the baseline %s on %s training rows", name, f"{len(train):,}")
    try:
        model = tfidf.fit_tfidf(train, task.label_type, len(examples.labels))
    except (ValueError, ArithmeticError, MemoryError) as error:  # a finished model is not lost for a baseline
        notes.append(f"no baseline {name}: {first_line(error)}")
        return
    if model is None:
        notes.append(f"no baseline {name}: no training text has a word of two letters")
        return
    if model.num_rows < len(train):
        notes.append(f"{name} was fit on {model.num_rows:,} of {len(train):,} training rows, drawn at random")
    if task.label_type != "multi-label" or "dev" not in examples.splits:
        yield name, model.scores
        return
    dev = examples.splits["dev"]
    shift = logit(tune_thresholds(expit(model.scores(dev)), column_array(dev, "label")))  # as for the model
    yield name, lambda rows: model.scores(rows) - shift


def best_constant_labels(labels: Any) -> Any:
    """Return the labels that have the highest micro F1 if every row gets them: (classes,), 0 or 1.

    They are the most frequent labels. How many there are depends on their frequencies.

    Args:
        labels: (rows, classes), 0 or 1.

    Example:
        >>> best_constant_labels(np.array([[1, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1]]))
        array([1, 1, 0])
    """
    counts = labels.sum(axis=0)
    most_frequent_first = np.argsort(-counts, kind="stable")
    num_answered = np.arange(1, len(counts) + 1)
    num_correct = np.cumsum(counts[most_frequent_first])
    sizes = np.stack([num_correct, num_answered * len(labels), np.full(len(counts), counts.sum())], axis=1)
    is_answered = np.zeros(len(counts), dtype=int)
    is_answered[most_frequent_first[: f1_from_counts(sizes).argmax() + 1]] = 1
    return is_answered


def tag_by_word(train: Dataset, num_tags: int) -> Any:
    """Return a function that gives each word its most frequent tag in train, and other words the most frequent tag."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    totals: Counter[int] = Counter()
    for words, tags in zip(label_values(train, "words"), label_values(train, "label"), strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
            totals[tag] += 1
    most_frequent = totals.most_common(1)[0][0]
    tag_of = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    one_hot = np.eye(num_tags)

    def score(rows: Dataset) -> list[Any]:
        return [one_hot[[tag_of.get(word, most_frequent) for word in words]] for words in label_values(rows, "words")]

    return score


def score_bm25(rows: Dataset) -> Any:
    """Return BM25's score of each pair of a query and a document. The index has all documents of the rows."""
    from headwise.tasks.ranking import import_bm25s

    bm25s = import_bm25s()
    queries, documents = label_values(rows, "text"), label_values(rows, "pair")
    index_of = {document: index for index, document in enumerate(dict.fromkeys(documents))}
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, query in enumerate(queries):
        rows_of[query].append(row)

    def tokenize(texts: Sequence[str]) -> Any:
        return bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)

    index = bm25s.BM25()
    index.index(tokenize(list(index_of)), show_progress=False)
    scores = np.zeros(len(rows))
    for query_rows, words in zip(rows_of.values(), tokenize(list(rows_of)), strict=True):
        if words:
            scores[query_rows] = index.get_scores(words)[[index_of[documents[row]] for row in query_rows]]
    return scores
