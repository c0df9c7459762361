"""Tokenized titles of all news of a click log."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from headwise.native_errors import tokenizer_errors

#: Titles tokenized at a time.
CHUNK_ROWS = 1000


@dataclass(frozen=True)
class Titles:
    """Token ids of titles; a news item's number in the log is its row.

    Args:
        tokens: (news, max tokens), int32, padded on the right.
        lengths: (news,), the number of tokens without padding.
        num_truncated: the number of titles that were longer.
    """

    tokens: Any
    lengths: Any
    num_truncated: int

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, news: Any) -> tuple[Any, Any]:
        """Return tokens and attention mask of some news, no wider than the longest title."""
        lengths = self.lengths[news]
        width = int(lengths.max(initial=1))
        return self.tokens[news, :width], np.arange(width) < lengths[:, None]


def tokenize_titles(tokenizer: Any, news: Dataset, max_length: int) -> Titles:
    """Tokenize all titles, truncated to `max_length` tokens. An empty title becomes one unknown token."""
    tokens = np.full((len(news), max_length), tokenizer.pad_token_id, dtype=np.int32)
    lengths = np.ones(len(news), dtype=np.int32)
    num_truncated = 0
    for start, titles in iterate_titles(news):
        with tokenizer_errors(tokenizer):
            encoded = tokenizer(titles, truncation=True, max_length=max_length, return_attention_mask=False)
        num_truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings or ())
        for row, ids in enumerate(encoded["input_ids"], start):
            ids = ids or [unknown_id(tokenizer)]
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
    return Titles(tokens, lengths, num_truncated)


def iterate_titles(news: Dataset) -> Iterator[tuple[int, list[str]]]:
    """Yield chunks of titles, each with the number of its first news item."""
    start = 0
    for chunk in news.select_columns(["title"]).iter(CHUNK_ROWS):
        yield start, chunk["title"]
        start += len(chunk["title"])


def unknown_id(tokenizer: Any) -> int:
    return int(tokenizer.unk_token_id if tokenizer.unk_token_id is not None else tokenizer.eos_token_id)
