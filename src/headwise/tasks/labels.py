"""Values of a file → texts, names of classes and ratings; names of classes → numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, List, Value

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Rows

#: The class of rows that a benchmark leaves out: SNLI's, where its annotators did not agree.
LEFT_OUT = "-"

# Values of a file, checked. A ValueError says what is wrong; `reading` adds where.


def text(value: Any) -> str:
    """A text that is not empty."""
    if value is None or isinstance(value, bool | list | dict):
        raise ValueError(f"expected a text, got {shown(value)}")
    found = str(value)
    if not found or found.isspace():
        raise ValueError("empty text")
    return found


def words(value: Any) -> list[str]:
    """A sentence in words."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"expected a list of words, got {shown(value)}")
    return [text(word) for word in value]


def name(value: Any) -> str:
    """A class, as a word or a number: 1, 1.0 and "1" are the same."""
    if isinstance(value, str):
        value = value.strip()
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value == "" or value != value:
        raise ValueError("no label")
    if isinstance(value, list | dict):
        raise ValueError(f"expected one label, got {shown(value)}; several labels a text are --label_type multi-label")
    return str(value)


def names(separator: str) -> Callable[[Any], list[str]]:
    """Any number of classes: a list, or words with a separator between them."""

    def split(value: Any) -> list[str]:
        if value is None:
            return []
        parts = value.split(separator) if isinstance(value, str) else value if isinstance(value, list) else [value]
        return list(dict.fromkeys(name(part) for part in parts if part != "" and not str(part).isspace()))

    return split


def renamed(called: Mapping[str, str]) -> Callable[[Any], str]:
    """A class by another name, for those that have one."""

    def rename(value: Any) -> str:
        found = name(value)
        return called.get(found, found)

    return rename


def tags(value: Any) -> list[str]:
    """A tag for each word: O, or B-, I-, E-, S- (BIOES) and a type."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of tags, got {shown(value)}")
    found = [name(tag) for tag in value]
    for tag in found:
        if tag != "O" and (len(tag) < 3 or tag[0] not in "BIES" or tag[1] != "-"):
            raise ValueError(f"expected tags such as O, B-PER and I-PER, got {tag!r}")
    return found


def rating(value: Any) -> float:
    """A finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, got {shown(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {shown(value)}")
    return number


def shown(value: Any) -> str:
    return "nothing" if value is None or value == "" else repr(value)[:40]


# Rows with labels as names → the same rows with labels as numbers.


def classes(rows: Rows) -> tuple[str, ...]:
    """The names of the classes in these rows, in the order of their numbers: by value if all are numbers, else by name.

    Raises:
        UserError: there is one class only, or nearly every row has its own.
    """
    column = rows.column("label")
    nested = pa.types.is_list(column.type)
    found = pc.unique(pc.list_flatten(column) if nested else column).to_pylist()
    if len(found) < 2:
        what = f"every label is {found[0]!r}" if found else "there is no label"
        raise UserError(f"{rows.origin}: {what}; two classes at least are needed")
    if not nested and len(found) > max(20, len(column) / 2):
        raise UserError(
            f"{rows.origin}: {len(found)} classes in {len(column)} rows; "
            "name the label's column (--label), or say --label_type regression"
        )
    return tuple(in_order(found))


def in_order(found: Sequence[str]) -> list[str]:
    """Numbers by value, words by the alphabet, O before other tags.

    >>> in_order(["10", "9"]), in_order(["b", "a"]), in_order(["B-PER", "O", "B-LOC"])
    (['9', '10'], ['a', 'b'], ['O', 'B-LOC', 'B-PER'])
    """
    try:
        return sorted(found, key=float)
    except ValueError:
        return sorted(found, key=lambda word: (word != "O", word))


def encode_labels(split: str, rows: Rows, labels: Sequence[str], *, leave_out: bool = False) -> Dataset:
    """The rows with their classes' numbers: one, for tokens a list, for several labels a text a vector of 0 and 1.

    Args:
        split: what the rows are, for a message.
        rows: with the names of their classes.
        labels: the names in the order of their numbers.
        leave_out: whether rows of the class `LEFT_OUT` are.

    Raises:
        UserError: a class that is not among the labels, with its split, file and line.
    """
    column = rows.column("label").combine_chunks()
    known = pa.array(labels, pa.string())
    if not pa.types.is_list(column.type):
        left_out = pc.and_(pc.equal(column, LEFT_OUT), leave_out)
        numbers = pc.if_else(left_out, 0, pc.index_in(column, value_set=known))
        check(split, rows, labels, column, numbers, np.arange(len(column)))
        data = with_label(rows, numbers.cast(pa.int64()), ClassLabel(names=list(labels)))
        return data.select(np.flatnonzero(pc.invert(left_out)), keep_in_memory=True) if leave_out else data
    flat, lengths = column.flatten(), column.value_lengths().to_numpy(zero_copy_only=False)
    numbers = pc.index_in(flat, value_set=known)
    owners = np.repeat(np.arange(len(column)), lengths)
    check(split, rows, labels, flat, numbers, owners)
    if "words" in rows.data.column_names:
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        ids = pa.ListArray.from_arrays(offsets, numbers.cast(pa.int64()))
        return with_label(rows, ids, List(ClassLabel(names=list(labels))))
    table = np.zeros((len(column), len(labels)), np.int8)
    table[owners, numbers.to_numpy()] = 1
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(table.ravel()), len(labels))
    return with_label(rows, vectors, List(Value("int8"), length=len(labels)))


def check(split: str, rows: Rows, labels: Sequence[str], found: pa.Array, numbers: pa.Array, owners: Any) -> None:
    if numbers.null_count:
        first = int(np.flatnonzero(pc.is_null(numbers))[0])
        told = (
            "is unknown; expected" if split in ("train", "all") else f"is in {split}, but nowhere in train, which has"
        )
        raise UserError(f"{rows.place(owners[first])}: label {found[first].as_py()!r} {told} {', '.join(labels)}")


def with_label(rows: Rows, numbers: pa.Array, feature: Any) -> Dataset:
    return rows.data.remove_columns("label").add_column("label", numbers, feature=feature)
