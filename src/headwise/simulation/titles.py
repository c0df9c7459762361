"""The news of a simulated click log: titles and topics of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.tasks.columns import choose_columns
from headwise.tasks.formats import read_batches, read_head


@dataclass(frozen=True)
class Titles:
    """News.

    Args:
        titles: one each.
        topics: the names of the topics.
        topic: (news,), the number of each news' topic.
        left_out: how many rows had no title.
    """

    titles: list[str]
    topics: list[str]
    topic: Any
    left_out: int

    def __len__(self) -> int:
        return len(self.titles)


def read(path: Path, *, text: str | None = None, label: str | None = None) -> Titles:
    """The titles and topics of a file; rows without a title are left out.

    Raises:
        UserError: columns that are not there or not clear, a row without a topic, fewer than two topics.
    """
    first = read_head(path)
    if text is None and "title" in first.columns:
        text = "title"
    columns = choose_columns(first, text=text, label=label)
    assert columns.label is not None
    titles, names, left_out = [], [], 0
    for batch in read_batches(path, [columns.text, columns.label]):
        for index, (title, name) in enumerate(zip(*batch.columns.values(), strict=True)):
            line, topic = one_line(title), one_line(name)
            if not line:
                left_out += 1
            elif not topic:
                raise UserError(f"{batch.place(index)}: column {columns.label!r}: no topic")
            else:
                titles.append(line)
                names.append(topic)
    topics, topic_of = np.unique(np.array(names, dtype=str), return_inverse=True)
    if len(topics) < 2:
        raise UserError(f"{path}: expected titles of at least two topics, got {len(topics)}")
    return Titles(titles, topics.tolist(), topic_of, left_out)


def one_line(value: Any) -> str:
    """A text without tabs and line ends."""
    return "" if value is None else " ".join(str(value).split())
