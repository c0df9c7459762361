"""Parsers of texts and labels, and the encoding of labels as class indices."""

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, List, Value

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Rows

logger = logging.getLogger(__name__)

#: The label of rows that a benchmark excludes, such as those of SNLI without a majority label.
EXCLUDED = "-"

#: Ratings are stored in float32.
MAX_RATING = float(np.finfo(np.float32).max)

MAX_CLASSES = 20  # or half the rows; with more classes, the column is probably not a label

DECIMAL_COMMA = re.compile(r"\s*[-+]?\d{1,40},\d{1,40}\s*")
#: A number, also with a decimal comma.
NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
FRACTION = re.compile(r"[-+]?\d+[.,]\d*[1-9]\d*")
THOUSANDS = re.compile(r"\s*[-+]?[1-9]\d{0,2},\d{3}\s*")

# Parsers raise a ValueError if a value is invalid; `arrow_cache` adds its location.


def parse_text(value: Any) -> str:
    """Return a text that is not empty."""
    if value is None or value != value:
        raise ValueError("empty text")
    if isinstance(value, bool | list | dict):
        raise ValueError(f"expected a text, got {format_value(value)}")
    text = str(value)
    if not text or text.isspace():
        raise ValueError("empty text")
    return text


def parse_words(value: Any) -> list[str]:
    """Return the words of a sentence."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"expected a list of words, got {format_value(value)}")
    return [parse_text(word) for word in value]


def parse_label(value: Any) -> str:
    """Return a label as a class name: 1, 1.0 and "1" are equal."""
    if isinstance(value, str):
        value = value.strip()
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:
        raise ValueError("no label")
    if isinstance(value, list | dict):
        raise ValueError(
            f"expected one label, got {format_value(value)}; for several labels per text, use --label-type multi-label"
        )
    return str(value)


def label_parser(label_names: Mapping[str, str]) -> Callable[[Any], str]:
    """Return a parser that replaces labels by class names, where there are any."""

    def parse(value: Any) -> str:
        label = parse_label(value)
        return label_names.get(label, label)

    return parse


def label_list_parser(separator: str) -> Callable[[Any], list[str]]:
    """Return a parser of any number of labels: a list, or a text with separators."""

    def parse(value: Any) -> list[str]:
        if value is None:
            return []
        parts = value.split(separator) if isinstance(value, str) else value if isinstance(value, list) else [value]
        return list(dict.fromkeys(parse_label(part) for part in parts if part != "" and not str(part).isspace()))

    return parse


def parse_tags(value: Any) -> list[str]:
    """Return the tags of a sentence: O, or B-, I-, E- or S- (BIOES) and a type."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of tags, got {format_value(value)}")
    tags = [parse_label(tag) for tag in value]
    for tag in tags:
        if tag != "O" and (len(tag) < 3 or tag[0] not in "BIES" or tag[1] != "-"):
            raise ValueError(f"expected tags such as O, B-PER and I-PER, got {tag!r}")
    return tags


def parse_rating(value: Any) -> float:
    """Return a finite number. 3,5 is read as 3.5; 1,250 is an error, because it may be 1.25 or 1250."""
    if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value) and not THOUSANDS.fullmatch(value):
        value = value.replace(",", ".")
    try:
        rating = float(value)
    except (TypeError, ValueError, OverflowError):
        hint = "; use a decimal point" if isinstance(value, str) and THOUSANDS.fullmatch(value) else ""
        raise ValueError(f"expected a number, got {format_value(value)}{hint}") from None
    if not math.isfinite(rating):
        raise ValueError(f"expected a finite number, got {format_value(value)}")
    if abs(rating) > MAX_RATING:
        raise ValueError(f"expected a number up to {MAX_RATING:.2g}, got {format_value(value)}")
    return rating


def format_value(value: Any) -> str:
    """Return a value for a message."""
    return "nothing" if value is None or value == "" else repr(value)[:40]


def collect_classes(rows: Rows) -> tuple[str, ...]:
    """Return the class names of rows, in the order of their indices.

    Raises:
        UserError: There are fewer than two classes, almost as many as rows, or many numbers with decimals.
    """
    column = rows.column("label")
    is_list = pa.types.is_list(column.type)
    classes = pc.unique(pc.list_flatten(column) if is_list else column).to_pylist()
    if len(classes) < 2:
        reason = f"every label is {classes[0]!r}" if classes else "there are no labels"
        raise UserError(f"{rows.origin}: {reason}; at least two classes are required")
    if not is_list and len(classes) > max(MAX_CLASSES, len(column) / 2):
        raise UserError(
            f"{rows.origin}: {len(classes)} classes in {len(column)} rows; "
            "name the label column (--label), or use --label-type regression"
        )
    fraction = next(filter(FRACTION.fullmatch, classes), None)
    if not is_list and len(classes) > MAX_CLASSES and fraction and all(map(NUMBER.fullmatch, classes)):
        raise UserError(
            f"{rows.origin}: the labels are {len(classes)} different numbers, such as {fraction}; "
            "use --label-type regression, or classes that are not numbers, such as v1.2"
        )
    return tuple(sort_classes(classes))


def sort_classes(classes: Sequence[str]) -> list[str]:
    """Sort class names by value if all are numbers, else alphabetically with O first.

    >>> sort_classes(["10", "9"]), sort_classes(["b", "a"]), sort_classes(["B-PER", "O", "B-LOC"])
    (['9', '10'], ['a', 'b'], ['O', 'B-LOC', 'B-PER'])
    """
    try:
        return sorted(classes, key=float)
    except ValueError:
        return sorted(classes, key=lambda name: (name != "O", name))


def encode_labels(
    split: str, rows: Rows, labels: Sequence[str], *, drop_excluded: bool = False, skip_unknown: bool | None = None
) -> Dataset:
    """Encode labels: as a class index, for tokens as a list of indices, for multi-label rows as a vector of 0 and 1.

    Args:
        split: The split of the rows, for a message.
        rows: Rows with class names as labels.
        labels: The class names, in the order of their indices.
        drop_excluded: Whether rows with the label `EXCLUDED` are dropped.
        skip_unknown: Whether rows with other labels are skipped, with a warning; None if there is no such option.

    Raises:
        UserError: A label is not one of `labels`, or none is and rows are skipped.
    """
    column = rows.column("label").combine_chunks()
    classes = pa.array(labels, pa.string())
    if not pa.types.is_list(column.type):
        is_excluded = pc.and_(pc.equal(column, EXCLUDED), drop_excluded)
        ids = pc.if_else(is_excluded, 0, pc.index_in(column, value_set=classes))
        skipped = check_labels(split, rows, labels, column, ids, np.arange(len(column)), skip=skip_unknown)
        data = replace_label(rows, ids.fill_null(0).cast(pa.int64()), ClassLabel(names=list(labels)))
        data = drop_rows(data, skipped)
        if not drop_excluded:
            return data
        return data.select(np.flatnonzero(pc.invert(is_excluded)), keep_in_memory=True)
    values, lengths = column.flatten(), column.value_lengths().to_numpy(zero_copy_only=False)
    ids = pc.index_in(values, value_set=classes)
    row_indices = np.repeat(np.arange(len(column)), lengths)
    skipped = check_labels(split, rows, labels, values, ids, row_indices, skip=skip_unknown)
    ids = ids.fill_null(0)
    if "words" in rows.data.column_names:
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        id_lists = pa.ListArray.from_arrays(offsets, ids.cast(pa.int64()))
        return drop_rows(replace_label(rows, id_lists, List(ClassLabel(names=list(labels)))), skipped)
    is_label = np.zeros((len(column), len(labels)), np.int8)
    is_label[row_indices, ids.to_numpy()] = 1
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(is_label.ravel()), len(labels))
    return drop_rows(replace_label(rows, vectors, List(Value("int8"), length=len(labels))), skipped)


def check_labels(
    split: str,
    rows: Rows,
    labels: Sequence[str],
    values: pa.Array,
    ids: pa.Array,
    row_indices: Any,
    *,
    skip: bool | None = None,
) -> Any:
    """Check that all labels are known, and return the indices of rows to skip.

    Args:
        split: The split of the rows.
        rows: The rows.
        labels: The class names.
        values: The labels of the rows.
        ids: Their class indices, null if unknown.
        row_indices: The row of each label.
        skip: Whether rows with an unknown label are skipped, with a warning; None if there is no such option.

    Raises:
        UserError: A label is unknown and its row is not skipped, or all rows would be skipped.
    """
    unknown_rows = np.unique(row_indices[np.flatnonzero(pc.is_null(ids))])
    if len(unknown_rows):
        index = int(np.flatnonzero(pc.is_null(ids))[0])
        reason = (
            "is unknown; expected" if split in ("train", "all") else f"is in {split}, but nowhere in train, which has"
        )
        location = rows.location(row_indices[index])
        total = f" ({len(unknown_rows):,} rows have an unknown label)" if len(unknown_rows) > 1 else ""
        message = f"{location}: label {values[index].as_py()!r} {reason} {', '.join(labels)}{total}"
        if skip is None or len(unknown_rows) == len(rows.data):
            raise UserError(message)
        if not skip:
            raise UserError(f"{message}; correct the labels, or skip these rows with --skip-bad-rows")
        logger.warning("skipped: %s", message)
    return unknown_rows


def drop_rows(data: Dataset, indices: Any) -> Dataset:
    """Return the rows without those of some indices."""
    return data.select(np.setdiff1d(np.arange(len(data)), indices), keep_in_memory=True) if len(indices) else data


def replace_label(rows: Rows, labels: pa.Array, feature: Any) -> Dataset:
    """Return the rows with other labels."""
    return rows.data.remove_columns("label").add_column("label", labels, feature=feature)
