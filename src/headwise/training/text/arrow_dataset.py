"""Encoded rows as batches, straight from the file that they lie in: no row becomes a Python list on the way."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils import data

from headwise.tasks.metrics.labels import column_array

#: What `Reader.encoded` notes for itself, and no model takes.
NOTES = ("length", "places", "cut")


class ArrowDataset(data.Dataset[dict[str, Tensor]]):
    """The rows of a split, of which a DataLoader takes a batch at a time.

    Args:
        rows: as `Reader.encoded` gives them.
        filling: by the name of a column, what fills up its shorter rows.
    """

    def __init__(self, rows: Dataset, filling: Callable[[str], int]) -> None:
        self.lengths = column_array(rows, "length")
        self.columns: dict[str, Numbers | Lists] = {}
        for name in rows.column_names:
            if name not in NOTES:
                found = rows.data.column(name)
                nested = pa.types.is_list(found.type) or pa.types.is_large_list(found.type)
                self.columns[name] = Lists(found, filling(name)) if nested else Numbers(found)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """A batch: lists are filled up to the longest."""
        chosen = np.asarray(rows)
        return {name: kept.batch(chosen) for name, kept in self.columns.items()}

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return self.__getitems__([row])


def identity_collate(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """What puts rows together that are together already."""
    return batch


class Numbers:
    """A column with a number a row."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        found = column.to_numpy()
        self.values = found.astype(np.float32 if np.issubdtype(found.dtype, np.floating) else np.int64)

    def batch(self, rows: Any) -> Tensor:
        return torch.from_numpy(self.values[rows])


class Lists:
    """A column with a list a row, or a list of lists, of which the files hold all numbers one after another."""

    def __init__(self, column: pa.ChunkedArray, filling: int) -> None:
        self.filling = filling
        self.starts = np.cumsum([0, *map(len, column.chunks)])
        self.parts = [Part(chunk) for chunk in column.chunks]

    def batch(self, rows: Any) -> Tensor:
        pieces = list(self.pieces(rows))
        if not isinstance(pieces[0], list):
            return torch.from_numpy(filled(pieces, self.filling))
        longest, widest = max(map(len, pieces)), max(len(piece) for row in pieces for piece in row)
        whole = np.full((len(pieces), longest, widest), self.filling, dtype=np.int64)
        for place, row in enumerate(pieces):
            for inner, piece in enumerate(row):
                whole[place, inner, : len(piece)] = piece
        return torch.from_numpy(whole)

    def pieces(self, rows: Any) -> Iterator[Any]:
        parts = np.searchsorted(self.starts, rows, side="right") - 1
        for part, row in zip(parts, rows - self.starts[parts], strict=True):
            yield self.parts[part].of(row)


class Part:
    """One piece of a file: where each row's numbers, or lists, begin and end."""

    def __init__(self, rows: pa.ListArray) -> None:
        self.bounds = rows.offsets.to_numpy()
        inner = pa.types.is_list(rows.values.type) or pa.types.is_large_list(rows.values.type)
        self.lists = Part(rows.values) if inner else None
        self.values = None if inner else rows.values.to_numpy()

    def of(self, row: int) -> Any:
        """The numbers of a row, or a list of its lists' numbers."""
        begin, end = self.bounds[row], self.bounds[row + 1]
        if self.lists is None:
            assert self.values is not None
            return self.values[begin:end]
        return [self.lists.of(place) for place in range(begin, end)]


def filled(pieces: Sequence[Any], filling: int) -> Any:
    """Arrays of different lengths as one."""
    fraction = np.issubdtype(pieces[0].dtype, np.floating)
    whole = np.full((len(pieces), max(map(len, pieces))), filling, dtype=np.float32 if fraction else np.int64)
    for place, piece in enumerate(pieces):
        whole[place, : len(piece)] = piece
    return whole
