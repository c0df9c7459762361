"""Columns of lists in an Arrow file, any rows of which can be taken at once.

The file is mapped into memory whole, and the values of all its batches are one array with gaps: whatever else is in the
file lies between. A row's values are where its batch's begin, and from there where its offset says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Lists:
    """One column.

    Args:
        values: the whole file, as values of the column's type.
        offsets: the whole file, as offsets.
        rows: (batches + 1,), the number of each batch's first row, and how many there are.
        values_at, offsets_at: (batches,), where each batch's values and offsets begin in these arrays.
    """

    values: Any
    offsets: Any
    rows: Any
    values_at: Any
    offsets_at: Any

    def __len__(self) -> int:
        return int(self.rows[-1])

    def bounds(self, rows: Any) -> tuple[Any, Any]:
        """Where the values of these rows begin and end."""
        rows = np.asarray(rows, dtype=np.int64)
        batch = np.searchsorted(self.rows, rows, side="right") - 1
        at = self.offsets_at[batch] + rows - self.rows[batch]
        begin = self.values_at[batch]
        return begin + self.offsets[at], begin + self.offsets[at + 1]

    def take(self, rows: Any) -> tuple[Any, Any]:
        """The values of these rows, flat, and where each row's begin, and where the last one's end."""
        begin, end = self.bounds(rows)
        offsets = np.concatenate([[0], np.cumsum(end - begin)])
        return self.values[np.repeat(begin - offsets[:-1], end - begin) + np.arange(offsets[-1])], offsets


def mapped(file: Path, names: Sequence[str]) -> dict[str, Lists]:
    """Columns of a file that `tasks.reading.store` wrote."""
    whole = pa.memory_map(str(file)).read_buffer()
    batches = list(pa.ipc.open_stream(whole))
    rows = np.cumsum([0, *(batch.num_rows for batch in batches)])
    found = {}
    for name in names:
        # Of a list: validity, offsets; of its values: validity, data.
        parts = [batch.column(name).buffers() for batch in batches]
        kind = batches[0].schema.field(name).type.value_type.to_pandas_dtype()
        width = np.dtype(kind).itemsize
        found[name] = Lists(
            values=as_array(whole, kind),
            offsets=as_array(whole, np.int32),
            rows=rows,
            values_at=np.array([0 if data is None else data.address - whole.address for *_, data in parts]) // width,
            offsets_at=np.array([offsets.address - whole.address for _, offsets, *_ in parts]) // 4,
        )
    return found


def as_array(whole: pa.Buffer, kind: Any) -> Any:
    width = np.dtype(kind).itemsize
    return np.frombuffer(whole, dtype=kind, count=whole.size // width)
