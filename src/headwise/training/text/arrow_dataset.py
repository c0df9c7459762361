"""Tokenized examples as batches of tensors, read from Arrow files without Python lists in between."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils import data

from headwise.tasks.metrics.labels import column_array

#: Columns of `TextEncoder.encode` that are not inputs of the model.
METADATA_COLUMNS = ("length", "word_indices", "truncated", "window_row")


class Padding(NamedTuple):
    """How the rows of a column are padded."""

    value: int
    is_left: bool = False


class ArrowDataset(data.Dataset[dict[str, Tensor]]):
    """A tokenized split, from which a DataLoader takes whole batches.

    Args:
        rows: the result of `TextEncoder.encode_dataset`.
        get_padding: returns how a column is padded.
    """

    def __init__(self, rows: Dataset, get_padding: Callable[[str], Padding]) -> None:
        self.lengths = column_array(rows, "length")
        self.columns: dict[str, ScalarColumn | ListColumn] = {}
        for name in rows.column_names:
            if name not in METADATA_COLUMNS:
                column = rows.data.column(name)
                self.columns[name] = (
                    ListColumn(column, get_padding(name)) if is_list(column.type) else ScalarColumn(column)
                )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch, padded to its longest row."""
        indices = np.asarray(rows)
        return {name: column.batch(indices) for name, column in self.columns.items()}

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return self.__getitems__([row])


class ScalarColumn:
    """A column with one number per row."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        values = column.to_numpy()
        self.values = values.astype(np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64)

    def batch(self, rows: Any) -> Tensor:
        return torch.from_numpy(self.values[rows])


class ListColumn:
    """A column with a list, or a list of lists, per row. Arrow stores the numbers of all rows contiguously."""

    def __init__(self, column: pa.ChunkedArray, padding: Padding) -> None:
        self.padding = padding
        self.chunk_starts = np.cumsum([0, *map(len, column.chunks)])
        self.chunks = [ListChunk(chunk) for chunk in column.chunks]

    def batch(self, rows: Any) -> Tensor:
        return pad_rows(list(self.read(rows)), self.padding)

    def read(self, rows: Any) -> Iterator[Any]:
        chunks = np.searchsorted(self.chunk_starts, rows, side="right") - 1
        for chunk, row in zip(chunks, rows - self.chunk_starts[chunks], strict=True):
            yield self.chunks[chunk].read(row)


class ListChunk:
    """A chunk of a list column: the numbers, or inner lists, and the offsets of the rows."""

    def __init__(self, rows: pa.ListArray) -> None:
        self.offsets = rows.offsets.to_numpy()
        self.inner = ListChunk(rows.values) if is_list(rows.values.type) else None
        self.values = None if self.inner else rows.values.to_numpy()

    def read(self, row: int) -> Any:
        """Return the numbers of a row, or a list with the numbers of each of its lists."""
        start, end = self.offsets[row], self.offsets[row + 1]
        if self.inner is None:
            assert self.values is not None
            return self.values[start:end]
        return [self.inner.read(index) for index in range(start, end)]


def is_list(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))


def pad_rows(rows: Sequence[Any], padding: Padding) -> Tensor:
    """Stack numbers, sequences of numbers or sequences of sequences of different lengths into one tensor.

    Sequences of sequences are padded on the right.

    >>> zeros = Padding(0)
    >>> pad_rows([[1, 2], [3]], zeros).tolist(), pad_rows([[1, 2], [3]], Padding(0, is_left=True)).tolist()
    ([[1, 2], [3, 0]], [[1, 2], [0, 3]])
    >>> pad_rows([[[1], [2, 3]], [[4]]], zeros).tolist(), pad_rows([5, 6], zeros).tolist()
    ([[[1, 0], [2, 3]], [[4, 0], [0, 0]]], [5, 6])
    """
    if not isinstance(rows[0], list | np.ndarray):
        return torch.tensor(rows)
    longest = max(map(len, rows))
    first = next((row[0] for row in rows if len(row)), 0)
    if not isinstance(first, list | np.ndarray):
        dtype = np.float32 if isinstance(first, float | np.floating) else np.int64
        padded = np.full((len(rows), longest), padding.value, dtype=dtype)
        for index, row in enumerate(rows):
            start = longest - len(row) if padding.is_left else 0
            padded[index, start : start + len(row)] = row
        return torch.from_numpy(padded)
    widest = max(len(inner) for row in rows for inner in row)
    padded = np.full((len(rows), longest, widest), padding.value, dtype=np.int64)
    for index, row in enumerate(rows):
        for inner_index, inner in enumerate(row):
            padded[index, inner_index, : len(inner)] = inner
    return torch.from_numpy(padded)
