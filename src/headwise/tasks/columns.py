"""Which columns hold the text, the second text of a pair and the label."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headwise.errors import UserError
from headwise.tasks.formats import Batch, missing_column

#: Names that are understood, in any case. The first texts of pairs come with their second.
TEXTS = (
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
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "pair"),
    ("claim", "evidence"),
    ("claim", "document"),
    ("query", "document"),
    ("question", "answer"),
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
    text: str
    pair: str | None
    label: str | None


def choose_columns(
    first: Batch, *, text: str | None = None, pair: str | None = None, label: str | None = None, labelled: bool = True
) -> Columns:
    """The columns: those that are named, else those with a name that is understood, else the only one that fits.

    Args:
        first: the first rows of the file.
        text: the text's column, or the first text's; found when not given.
        pair: the second text's column; looked for only when `text` is not given either.
        label: the label's column.
        labelled: whether a label is looked for.

    Raises:
        UserError: a named column is not there, or it is not clear which is meant.
    """
    names = list(first.columns)
    for name in (text, pair, label):
        if name is not None and name not in names:
            raise missing_column(first.path, name, names)

    def free() -> list[str]:
        return [name for name in names if name not in (text, pair, label)]

    if text is None and pair is None:
        text, pair = known_pair(free())
    if text is None:
        text = find_known_column(first, free(), TEXTS, "text")
    if label is None and labelled:
        label = find_known_column(first, free(), LABEL_NAMES, "label")
    if text is None:
        text = the_only([name for name in free() if holds_text(first.columns[name])], first, "text")
    if label is None and labelled:
        label = the_only(free(), first, "label")
    return Columns(text, pair, label)


def known_pair(names: Sequence[str]) -> tuple[str | None, str | None]:
    lower = {name.strip().lower(): name for name in names}
    return next(((lower[a], lower[b]) for a, b in PAIRS if a in lower and b in lower), (None, None))


def find_known_column(first: Batch, names: Sequence[str], understood: Sequence[str], role: str) -> str | None:
    found = [name for name in names if name.strip().lower() in understood]
    if len(found) > 1:
        raise unclear(first, role, found)
    return found[0] if found else None


def the_only(names: Sequence[str], first: Batch, role: str) -> str:
    if len(names) != 1:
        raise unclear(first, role)
    return names[0]


def holds_text(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str | list) and not is_number(value) for value in values)


def is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def unclear(first: Batch, role: str, found: Sequence[str] = ()) -> UserError:
    there = f"it could be {' or '.join(found)}" if found else f"there: {', '.join(first.columns)}"
    return UserError(f"{first.path}: which column is the {role}? Say --{role} NAME; {there}")
