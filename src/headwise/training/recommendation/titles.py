"""All titles of a log as tokens, in one table: news are its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

#: Titles that are tokenised at a time.
ROWS = 1000


@dataclass(frozen=True)
class Titles:
    """Titles as tokens.

    Args:
        tokens: (news, most tokens), int32, filled up at the end.
        lengths: (news,), how many of them are real.
        cut: how many titles were longer.
    """

    tokens: Any
    lengths: Any
    cut: int

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, news: Any) -> tuple[Any, Any]:
        """Tokens and mask of some news, no wider than needed."""
        lengths = self.lengths[news]
        width = int(lengths.max(initial=1))
        return self.tokens[news, :width], np.arange(width) < lengths[:, None]


def tokenize_titles(tokenizer: Any, news: Dataset, length: int) -> Titles:
    """All titles, cut after so many tokens. A title without a word is one unknown word."""
    tokens = np.full((len(news), length), tokenizer.pad_token_id, dtype=np.int32)
    lengths = np.ones(len(news), dtype=np.int32)
    cut = 0
    for first, titles in in_parts(news):
        encoded = tokenizer(titles, truncation=True, max_length=length, return_attention_mask=False)
        cut += sum(bool(one.overflowing) for one in encoded.encodings or ())
        for row, ids in enumerate(encoded["input_ids"], first):
            ids = ids or [unknown(tokenizer)]
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
    return Titles(tokens, lengths, cut)


def in_parts(news: Dataset) -> Iterator[tuple[int, list[str]]]:
    first = 0
    for part in news.select_columns(["title"]).iter(ROWS):
        yield first, part["title"]
        first += len(part["title"])


def unknown(tokenizer: Any) -> int:
    return int(tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.eos_token_id)
