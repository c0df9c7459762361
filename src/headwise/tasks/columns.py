"""The choice of the columns of text, second text and label."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from headwise.errors import UserError
from headwise.tasks.formats import Batch, format_names, missing_column

logger = logging.getLogger(__name__)

#: Known names of columns; upper and lower case are equal.
TEXT_NAMES = (
    "text",
    "sentence",
    "review",
    "reviewtext",
    "content",
    "comment",
    "body",
    "document",
    "tweet",
    "words",
    "tokens",
)
PAIR_NAMES = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "pair"),
    ("claim", "evidence"),
    ("claim", "document"),
    ("query", "document"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "document"),
    ("question", "answer"),
    ("question1", "question2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text_1", "text_2"),
    ("texta", "textb"),
)
LABEL_NAMES = (
    "label",
    "labels",
    "gold_label",
    "class",
    "category",
    "target",
    "sentiment",
    "topic",
    "rating",
    "stars",
    "overall",
    "score",
    "tags",
    "ner_tags",
)


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a file."""

    text: str
    pair: str | None
    label: str | None


def choose_columns(
    batch: Batch, *, text: str | None = None, pair: str | None = None, label: str | None = None, labelled: bool = True
) -> Columns:
    """Choose columns: those that are given, else those with a known name, else the only possible one.

    Args:
        batch: The first rows of the file.
        text: The column of the text, or of the first text of a pair.
        pair: The column of the second text; chosen only if `text` is not given either.
        label: The column of the label.
        labelled: Whether a label is required.

    Raises:
        UserError: A given column does not exist, or the choice is ambiguous.
    """
    names = list(batch.columns)
    for name in (text, pair, label):
        if name is not None and name not in names:
            raise missing_column(batch.path, name, names)

    def list_unused() -> list[str]:
        return [name for name in names if name not in (text, pair, label) and name.strip()]

    is_detected, guessed = text is None and pair is None, []
    if text is None and pair is None:
        text, pair = find_known_pair(list_unused())
        if pair is not None:
            guessed.append(f"{text} and {pair} are read as a text pair")
    if text is None:
        text = find_known_column(batch, list_unused(), TEXT_NAMES, "text")
    if label is None and labelled:
        label = find_known_column(batch, list_unused(), LABEL_NAMES, "label")
    if text is None:
        texts = [name for name in list_unused() if has_text(batch.columns[name])]
        texts = [name for name in texts if name.strip().lower() not in LABEL_NAMES] or texts
        texts = [name for name in texts if has_sentences(batch.columns[name])] or texts
        if len(texts) == 2 and pair is None and (label is not None or not labelled):
            raise UserError(
                f"{batch.path}: {texts[0]} and {texts[1]} have texts; for text pairs, set --text {quote(texts[0])} "
                f"--pair {quote(texts[1])}, for one text --text"
            )
        text = only_column(texts, batch, "text")
        guessed.append(f"the text column is {text}")
    if label is None and labelled:
        filled = [name for name in list_unused() if not is_empty(batch.columns[name])]
        label = only_column(filled or list_unused(), batch, "label")
        guessed.append(f"the label column is {label}")
    if guessed:
        logger.info("%s: %s", batch.path, ", ".join(guessed))
    if labelled and label in batch.columns[str(label)]:
        logger.warning(
            "%s: %r is the name of the label column and also a label; if the first line is a row, add a line with the "
            "names of the columns above it",
            batch.path,
            label,
        )
    if is_detected and labelled and pair is None:
        others = [name for name in list_unused() if has_sentences(batch.columns[name])]
        if others:
            logger.info(
                "%s: the texts of %s are used, not those of %s; for text pairs, set --text and --pair",
                batch.path,
                text,
                format_names(others),
            )
    return Columns(text, pair, label)


def find_known_pair(names: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the columns of a text pair with known names, if any."""
    by_lower_case = {name.strip().lower(): name for name in names}
    pairs = ((by_lower_case.get(a), by_lower_case.get(b)) for a, b in PAIR_NAMES)
    return next((pair for pair in pairs if None not in pair), (None, None))


def find_known_column(batch: Batch, names: Sequence[str], known_names: Sequence[str], role: str) -> str | None:
    """Return the column with a known name, if any. Of several, those without values are ignored.

    Raises:
        UserError: There are several.
    """
    matches = [name for name in names if name.strip().lower() in known_names]
    if len(matches) > 1:
        matches = [name for name in matches if not is_empty(batch.columns[name])] or matches
    if len(matches) > 1:
        raise ambiguous_column(batch, role, matches)
    return matches[0] if matches else None


def only_column(names: Sequence[str], batch: Batch, role: str) -> str:
    """Return the only column.

    Raises:
        UserError: There are several, or none.
    """
    if len(names) != 1:
        raise ambiguous_column(batch, role)
    return names[0]


def is_empty(values: Sequence[Any]) -> bool:
    """Return whether a column has no values."""
    return all(value is None or (isinstance(value, str) and not value.strip()) for value in values)


def has_text(values: Sequence[Any]) -> bool:
    """Return whether a column has a value that is a text and not a number."""
    return any(isinstance(value, str | list) and not is_number(value) for value in values)


def has_sentences(values: Sequence[Any]) -> bool:
    """Return whether most values are texts of several words."""
    counts = [len(value.split()) for value in values if isinstance(value, str)]
    return sum(count >= 3 for count in counts) > len(values) / 2


def is_number(value: Any) -> bool:
    """Return whether a value can be converted to a number."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def ambiguous_column(batch: Batch, role: str, matches: Sequence[str] = ()) -> UserError:
    """Return the error for a column that cannot be chosen."""
    if role == "label" and len(batch.columns) == 1:
        return UserError(
            f"{batch.path}: no column for the labels; its only column is {format_names(batch.columns)}; add a column "
            "with labels (headwise predict needs none)"
        )
    pairs = "; for text pairs, set --text and --pair" if role == "text" and len(batch.columns) > 2 else ""
    choices = f"{' and '.join(matches)} are possible" if matches else f"the columns are {format_names(batch.columns)}"
    return UserError(f"{batch.path}: the {role} column is not clear; name it with --{role}{pairs}; {choices}")
