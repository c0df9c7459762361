"""A summary of the examples of a task: rows, lengths, labels, duplicates, and warnings about likely mistakes."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from headwise.tasks.formats import BATCH_ROWS
from headwise.tasks.labels import NUMBER
from headwise.tasks.metrics.labels import column_array, label_values
from headwise.tasks.task import Examples

MAX_LISTED_LABELS = 20
MAX_COMPARED_LABELS = 500  # comparing all pairs of more labels takes too long

#: Values that programs write for a missing value.
MISSING_VALUES = ("nan", "NaN", "NAN", "null", "NULL", "None", "n/a", "N/A", "#N/A", "<NA>", "NaT")

MIN_SIMILARITY = 0.8  # of two labels, one of which may be a misspelling
MAX_RARE_FRACTION = 0.2  # a misspelling is at most this frequent, compared with the other label

#: More different numbers are probably ratings and not classes.
MAX_NUMERIC_CLASSES = 20


@dataclass(frozen=True)
class DataSummary:
    """What is in the data of a task. `str(summary)` has one line for each part.

    Args:
        rows: The number of rows of each split.
        words: (rows,), the number of words of each row of all splits; for pairs, of both texts.
        labels: The number of rows of each label over all splits, the most frequent first; for token tasks of words.
            Empty for regression.
        ratings: (rows,), the labels of regression; empty for other tasks.
        duplicates: How many texts are in two splits; empty if there are none.
        warnings: Likely mistakes in the data.
    """

    rows: Mapping[str, int]
    words: Any
    labels: Mapping[str, int]
    ratings: Any
    duplicates: str
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"rows: {', '.join(f'{split} {count:,}' for split, count in self.rows.items())}",
            f"lengths: {describe_lengths(self.words, 'words')}",
            describe_labels(self.labels, self.ratings),
            f"duplicates: {self.duplicates or 'none between splits'}",
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)


def summarize(examples: Examples) -> DataSummary:
    """Summarize examples.

    Example:
        >>> from datasets import ClassLabel, Dataset, Features, Value
        >>> features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
        >>> rows = {"text": ["a fine film", "good", "dull", "bad"], "label": [1, 1, 0, 0]}
        >>> split = Dataset.from_dict(rows, features=features)
        >>> print(summarize(Examples({"train": split}, ("bad", "good"), "")))
        rows: train 4
        lengths: median 1 word, 95% quantile 3, longest 3
        labels: bad 2, good 2
        duplicates: none between splits
    """
    splits = examples.splits
    words, missing = zip(*(count_words(rows) for rows in splits.values()), strict=True)
    labels = count_labels(examples)
    ratings = np.concatenate([column_array(rows, "label") for rows in splits.values()]) if not labels else np.zeros(0)
    is_tagging = any("words" in rows.column_names for rows in splits.values())
    warnings = find_label_warnings(labels, is_tagging=is_tagging)
    if sum(missing):
        warnings.append(f"{format_count(sum(missing), 'text')} 'nan', 'null' or the like: probably missing values")
    return DataSummary(
        {split: len(rows) for split, rows in splits.items()},
        np.concatenate(words),
        labels,
        ratings,
        examples.duplicates,
        tuple(warnings),
    )


def count_words(rows: Dataset) -> tuple[Any, int]:
    """Return the number of words of each row, and the number of texts that stand for a missing value."""
    counts, num_missing = [np.zeros(0, np.int64)], 0
    names = [name for name in ("text", "pair", "words") if name in rows.column_names]
    for batch in rows.select_columns(names).with_format("arrow").iter(BATCH_ROWS):
        total = np.zeros(len(batch), np.int64)
        for name in names:
            column = batch.column(name)
            if name == "words":
                total += pc.list_value_length(column).to_numpy()
                continue
            total += pc.count_substring_regex(column, r"\S+").to_numpy()
            is_missing = pc.is_in(pc.utf8_trim_whitespace(column), value_set=pa.array(MISSING_VALUES))
            num_missing += pc.sum(is_missing).as_py() or 0
        counts.append(total)
    return np.concatenate(counts), num_missing


def count_labels(examples: Examples) -> dict[str, int]:
    """Return the number of rows of each label over all splits, the most frequent first; empty for regression."""
    if not examples.labels:
        return {}
    counts = np.zeros(len(examples.labels), np.int64)
    for rows in examples.splits.values():
        if "words" in rows.column_names:
            indices = np.concatenate([np.zeros(0, np.int64), *map(np.asarray, label_values(rows, "label"))])
            counts += np.bincount(indices.astype(np.int64), minlength=len(counts))
            continue
        labels = column_array(rows, "label")
        counts += labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=len(counts))
    order = np.argsort(-counts, kind="stable")
    return {examples.labels[index]: int(counts[index]) for index in order}


def describe_lengths(lengths: Any, unit: str, num_truncated: int = 0) -> str:
    """Describe the lengths of texts.

    Args:
        lengths: (rows,), the lengths.
        unit: Their unit.
        num_truncated: The number of texts that were truncated, so that their lengths are not known.

    >>> describe_lengths(np.array([1, 2, 3, 10]), "tokens"), describe_lengths(np.array([1, 2, 3, 10]), "tokens", 1)
    ('median 2 tokens, 95% quantile 10, longest 10', 'median 2 tokens, 95% quantile over 10, longest over 10')
    """
    texts = []
    for quantile in (0.5, 0.95, 1.0):
        is_known = quantile * len(lengths) <= len(lengths) - num_truncated
        length = int(np.quantile(lengths, quantile, method="inverted_cdf"))
        texts.append(f"{length:,}" if is_known else f"over {length:,}")
    median, most, longest = texts
    unit = unit.removesuffix("s") if median == "1" else unit
    return f"median {median} {unit}, 95% quantile {most}, longest {longest}"


def describe_labels(labels: Mapping[str, int], ratings: Any) -> str:
    """Describe the labels in one line.

    >>> describe_labels({"negative": 41, "positive": 37, "postive": 2}, [])
    'labels: negative 41, positive 37, postive 2'
    >>> describe_labels({"4": 81, "2.5": 77}, [])
    "labels: '4' 81, '2.5' 77"
    >>> describe_labels({}, np.array([1.0, 2.5]))
    'labels: 1 to 2.5, mean 1.75, median 1.75'
    """
    if not labels:
        mean, median = np.mean(ratings), np.median(ratings)
        return f"labels: {np.min(ratings):g} to {np.max(ratings):g}, mean {mean:.4g}, median {median:.4g}"
    listed = list(labels.items())[:MAX_LISTED_LABELS]
    others = len(labels) - len(listed)
    end = f" and {others:,} others, the rarest {min(labels.values()):,}" if others else ""
    names = [shorten(label) for label, _ in listed]
    if any(name[-1:].isdigit() or "," in name for name in names):  # otherwise parts would look like labels or counts
        names = [f"'{name}'" for name in names]
    counts = [f"{name} {count:,}" for name, (_, count) in zip(names, listed, strict=True)]
    return f"labels: {', '.join(counts)}{end}"


def are_ratings(labels: Sequence[str]) -> bool:
    """Return whether labels are probably ratings: numbers, and more of them than there are stars or grades.

    >>> are_ratings([str(number / 10) for number in range(48)]), are_ratings(["1", "2", "3", "4", "5"])
    (True, False)
    """
    return len(labels) > MAX_NUMERIC_CLASSES and all(map(NUMBER.fullmatch, labels))


def find_joined_label(labels: Sequence[str]) -> str | None:
    """Return a label that is probably a list of labels: its parts, separated by |, are in other labels, too.

    >>> find_joined_label(["news", "sports|news", "sports"]), find_joined_label(["a|b", "c"])
    ('sports|news', None)
    """
    joined = [label for label in labels if "|" in label]
    counts = Counter(part.strip() for label in labels for part in set(label.split("|")))
    return next((label for label in joined if all(counts[part.strip()] > 1 for part in label.split("|"))), None)


def find_label_warnings(labels: Mapping[str, int], *, is_tagging: bool = False) -> list[str]:
    """Return warnings about labels that are probably misspelled or missing, or have one row.

    Args:
        labels: The number of rows of each label.
        is_tagging: Whether words are counted, not rows.
    """
    warnings = [
        f"{format_count(labels[label], 'row')} labelled {label!r}: probably missing labels"
        for label in labels
        if label in MISSING_VALUES
    ]
    names = list(labels)
    if are_ratings(names):
        warnings.append(f"the labels are {len(names)} different numbers; for ratings, add --label-type regression")
        return warnings
    if not is_tagging and (example := find_joined_label(names)):
        warnings.append(
            f"labels such as {shorten(example)!r} look like several labels; for several labels per text, add "
            "--label-type multi-label"
        )
        return warnings
    if len(names) > MAX_COMPARED_LABELS:
        return warnings
    single: list[str] = []
    for index, label in enumerate(names):
        for other in names[:index]:  # more frequent ones
            if is_tagging and label[1:2] == "-" and label[1:] == other[1:]:  # B-LOC and I-LOC
                continue
            if is_misspelling(label, labels[label], other, labels[other]):
                warnings.append(
                    f"label {shorten(label)!r} ({labels[label]:,}) is similar to {shorten(other)!r} "
                    f"({labels[other]:,}): a misspelling?"
                )
                break
        else:
            single += [shorten(label)] if labels[label] == 1 else []
    if single and not is_tagging:
        listed = ", ".join(single[:5]) + (f" and {len(single) - 5:,} others" if len(single) > 5 else "")
        warnings.append(f"labels with a single row, which are not evaluated: {listed}")
    return warnings


def is_misspelling(label: str, count: int, other: str, other_count: int) -> bool:
    """Return whether a label is probably another spelling of a more frequent one.

    >>> is_misspelling("postive", 2, "positive", 37), is_misspelling("Positive", 30, "positive", 37)
    (True, True)
    >>> is_misspelling("1.0", 30, "1", 30), is_misspelling("10", 2, "1", 30)
    (True, False)
    >>> is_misspelling("class 2", 2, "class 1", 37), is_misspelling("unacceptable", 2, "acceptable", 37)
    (False, False)
    """
    if NUMBER.fullmatch(label) and NUMBER.fullmatch(other):
        return float(label.replace(",", ".")) == float(other.replace(",", "."))
    spellings = [re.sub(r"[\s_-]+", "", name).casefold() for name in (label, other)]
    if sum(map(str.isalpha, spellings[0])) >= 2 and spellings[0] == spellings[1]:
        return True
    without_digits = [re.sub(r"\d+", "", name) for name in spellings]
    if len(min(spellings, key=len)) < 4 or count > MAX_RARE_FRACTION * other_count:
        return False
    longer, shorter = sorted(spellings, key=len, reverse=True)
    if without_digits[0] == without_digits[1] or (longer.endswith(shorter) and len(longer) > len(shorter) + 1):
        return False
    return difflib.SequenceMatcher(None, spellings[0], spellings[1]).ratio() >= MIN_SIMILARITY


def shorten(label: str) -> str:
    """Return a label of at most 40 characters on one line."""
    label = " ".join(label.split())
    return label if len(label) <= 40 else f"{label[:39]}…"


def format_count(count: int, noun: str) -> str:
    """Return a number with a noun and "is" or "are".

    >>> format_count(1, "row"), format_count(2, "row")
    ('1 row is', '2 rows are')
    """
    return f"{count:,} {noun} is" if count == 1 else f"{count:,} {noun}s are"
