"""Tokenized sentence pairs in memory-mapped files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from headwise.errors import UserError
from headwise.native_errors import tokenizer_errors

#: Sentences tokenized at a time.
CHUNK_ROWS = 1000
SIDES = ("source", "target")


@dataclass(frozen=True)
class RaggedArray:
    """Rows of different lengths: the ids of all rows, and the end of each row in them."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def pad(self, rows: Any, pad_value: int) -> NDArray[np.int64]:
        """Return some rows as one array, padded to the longest of them.

        Example:
            >>> RaggedArray(np.array([5, 6, 7]), np.array([1, 3])).pad([0, 1], -1).tolist()
            [[5, -1], [6, 7]]
        """
        rows = np.asarray(rows)
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        positions = np.arange(lengths.max(initial=0))
        is_token = positions < lengths[:, None]
        padded = np.full(is_token.shape, pad_value, np.int64)
        padded[is_token] = self.ids[(starts[:, None] + positions)[is_token]]
        return padded


@dataclass(frozen=True)
class TokenizedPairs:
    """The sentences of a split in both languages, each with its end token.

    Args:
        source, target: token ids.
        num_clipped: the number of pairs that were cut to `--max-length`.
    """

    source: RaggedArray
    target: RaggedArray
    num_clipped: int = 0

    def __len__(self) -> int:
        return len(self.source.ends)

    @classmethod
    def open(cls, directory: Path, split: str) -> "TokenizedPairs":
        """Open the files that `write` wrote."""
        source, target = (
            RaggedArray(
                np.load(directory / f"{split}.{side}.ids.npy", mmap_mode="r", allow_pickle=False),
                np.load(directory / f"{split}.{side}.npy", allow_pickle=False),
            )
            for side in SIDES
        )
        return cls(source, target, int((directory / f"{split}.clipped").read_text()))

    @classmethod
    def write(
        cls,
        directory: Path,
        split: str,
        rows: Dataset,
        tokenizer: Any,
        *,
        max_length: int,
        clip: bool,
        location: Callable[[int], str],
    ) -> "TokenizedPairs":
        """Tokenize a split, with at most CHUNK_ROWS rows in memory at a time.

        Args:
            directory: the directory to write to.
            split: the prefix of the file names.
            rows: a data set with columns `source` and `target`.
            tokenizer: the tokenizer of both languages.
            max_length: the maximum number of tokens in a sentence, including the end token.
            clip: cut longer sentences.
            location: returns the file and line of a row, for messages.

        Raises:
            UserError: a sentence is too long and `clip` is false.
        """
        dtype = np.uint16 if len(tokenizer) <= 2**16 else np.int32
        is_clipped = np.zeros(len(rows), bool)
        for side in SIDES:
            ends = np.zeros(len(rows), np.int64)
            raw_path = directory / f"{split}.{side}.raw"
            row = num_tokens = 0
            with raw_path.open("wb") as file:
                for chunk in rows.select_columns([side]).iter(CHUNK_ROWS):
                    for ids in encode(tokenizer, chunk[side]):
                        if len(ids) > max_length:
                            if not clip:
                                raise too_long_error(f"{location(row)}, {side}", len(ids), max_length)
                            ids, is_clipped[row] = clip_ids(ids, max_length), True
                        file.write(np.asarray(ids, dtype).tobytes())
                        num_tokens += len(ids)
                        ends[row] = num_tokens
                        row += 1
            np.save(directory / f"{split}.{side}.ids.npy", np.fromfile(raw_path, dtype))
            np.save(directory / f"{split}.{side}.npy", ends)
            raw_path.unlink()
        (directory / f"{split}.clipped").write_text(str(int(is_clipped.sum())))
        return cls.open(directory, split)


def encode(tokenizer: Any, texts: list[str]) -> Iterator[list[int]]:
    """Yield the token ids of each text with the end token.

    The backend tokenizer is called directly because the wrapper warns about long texts.
    """
    with tokenizer_errors(tokenizer):
        return (encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch(list(texts)))


def clip_ids(ids: list[int], max_length: int) -> list[int]:
    """Return at most `max_length` token ids; the last one is still the end token."""
    return [*ids[: max_length - 1], ids[-1]]


def too_long_error(location: str, length: int, max_length: int) -> UserError:
    return UserError(
        f"{location}: {length} tokens, but at most {max_length} are allowed (--max-length); "
        "--clip cuts longer sentences"
    )
