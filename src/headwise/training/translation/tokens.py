"""Tokenised sentences of different lengths, one after another in a file that is mapped into memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from headwise.errors import UserError

ROWS = 1000
SIDES = ("source", "target")


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: all ids, and where each row ends."""

    ids: NDArray[Any]
    ends: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def padded(self, rows: Any, filling: int) -> NDArray[np.int64]:
        """Some rows as a table, filled up to the longest.

        Example:
            >>> Ragged(np.array([5, 6, 7]), np.array([1, 3])).padded([0, 1], -1).tolist()
            [[5, -1], [6, 7]]
        """
        rows = np.asarray(rows)
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        places = np.arange(lengths.max(initial=0))
        real = places < lengths[:, None]
        table = np.full(real.shape, filling, np.int64)
        table[real] = self.ids[(starts[:, None] + places)[real]]
        return table


@dataclass(frozen=True)
class Tokens:
    """The sentences of a split in both languages, each with its end token, and how many were clipped."""

    source: Ragged
    target: Ragged
    clipped: int = 0

    def __len__(self) -> int:
        return len(self.source.ends)

    @classmethod
    def open(cls, folder: Path, split: str) -> "Tokens":
        """What `write` left."""
        source, target = (
            Ragged(
                np.load(folder / f"{split}.{side}.ids.npy", mmap_mode="r", allow_pickle=False),
                np.load(folder / f"{split}.{side}.npy", allow_pickle=False),
            )
            for side in SIDES
        )
        return cls(source, target, int((folder / f"{split}.clipped").read_text()))

    @classmethod
    def write(
        cls,
        folder: Path,
        split: str,
        rows: Dataset,
        tokenizer: Any,
        *,
        longest: int,
        clip: bool,
        place: Callable[[int], str],
    ) -> "Tokens":
        """Tokenise a split, a thousand rows in memory at a time.

        Args:
            folder: where files go.
            split: what they are called.
            rows: with `source` and `target`.
            tokenizer: of both languages.
            longest: the most tokens in a sentence, its end included.
            clip: cut longer ones.
            place: where a row stands, for messages.

        Raises:
            UserError: a sentence is longer, and shall not be cut.
        """
        kind = np.uint16 if len(tokenizer) <= 2**16 else np.int32
        clipped = np.zeros(len(rows), bool)
        for side in SIDES:
            ends = np.zeros(len(rows), np.int64)
            raw = folder / f"{split}.{side}.raw"
            done = total = 0
            with raw.open("wb") as file:
                for part in rows.select_columns([side]).iter(ROWS):
                    for ids in encoded(tokenizer, part[side]):
                        if len(ids) > longest:
                            if not clip:
                                raise too_long(f"{place(done)}, {side}", len(ids), longest)
                            ids, clipped[done] = clipped_to(ids, longest), True
                        file.write(np.asarray(ids, kind).tobytes())
                        total += len(ids)
                        ends[done] = total
                        done += 1
            np.save(folder / f"{split}.{side}.ids.npy", np.fromfile(raw, kind))
            np.save(folder / f"{split}.{side}.npy", ends)
            raw.unlink()
        (folder / f"{split}.clipped").write_text(str(int(clipped.sum())))
        return cls.open(folder, split)


def encoded(tokenizer: Any, texts: list[str]) -> Iterator[list[int]]:
    """Each text's tokens and its end, however long: so the fast tokenizer is asked itself, which never warns."""
    return (one.ids for one in tokenizer.backend_tokenizer.encode_batch(list(texts)))


def clipped_to(ids: list[int], longest: int) -> list[int]:
    """At most so many tokens, the last of which is the end."""
    return [*ids[: longest - 1], ids[-1]]


def too_long(place: str, length: int, longest: int) -> UserError:
    return UserError(
        f"{place}: {length} tokens, where at most {longest} are taken (--max-length); --clip cuts longer sentences"
    )
