"""Columns of a split as arrays."""

from typing import Any

import numpy as np
from datasets import Dataset


def column_array(rows: Dataset, name: str) -> Any:
    """A column, without reading the others."""
    return np.asarray(rows.select_columns(name).with_format("numpy")[:][name])


def label_values(rows: Dataset, name: str) -> list[Any]:
    """A column as Python's own values."""
    found: list[Any] = rows.select_columns(name).with_format(None)[:][name]
    return found
