"""News of a simulated click log: titles and topics from a file."""

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
        titles: The titles.
        topics: The names of the topics.
        topic_ids: (news,), the topic of each news item.
        num_skipped: The number of rows without a title.
    """

    titles: list[str]
    topics: list[str]
    topic_ids: Any
    num_skipped: int

    def __len__(self) -> int:
        return len(self.titles)


def read_titles(path: Path, *, text: str | None = None, label: str | None = None) -> Titles:
    """Read the titles and topics of a file; rows without a title are skipped.

    Args:
        path: The file.
        text, label: The columns of title and topic; by default they are chosen by their names.

    Raises:
        UserError: A column is missing or ambiguous, a row has no topic, or there are fewer than two topics.
    """
    head = read_head(path)
    if text is None and "title" in head.columns:
        text = "title"
    columns = choose_columns(head, text=text, label=label)
    assert columns.label is not None
    titles, topic_names, num_skipped = [], [], 0
    for batch in read_batches(path, [columns.text, columns.label]):
        for index, values in enumerate(zip(*batch.columns.values(), strict=True)):
            title, topic = map(normalize_whitespace, values)
            if not title:
                num_skipped += 1
            elif not topic:
                raise UserError(f"{batch.location(index)}: column {columns.label!r}: no topic")
            else:
                titles.append(title)
                topic_names.append(topic)
    topics, topic_ids = np.unique(np.array(topic_names, dtype=str), return_inverse=True)
    if len(topics) < 2:
        raise UserError(f"{path}: expected titles of at least two topics, got {len(topics)}")
    return Titles(titles, topics.tolist(), topic_ids, num_skipped)


def normalize_whitespace(value: Any) -> str:
    """Return a text without tabs and line breaks."""
    return "" if value is None else " ".join(str(value).split())
