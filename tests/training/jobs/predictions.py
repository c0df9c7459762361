"""Files of predictions, and their comparison."""

from pathlib import Path
from typing import Any

import pytest

from headwise.tasks.formats import read_batches


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [
        dict(zip(batch.columns, row, strict=True))
        for batch in read_batches(path)
        for row in zip(*batch.columns.values(), strict=True)
    ]


def assert_same_predictions(one: Path, other: Path) -> None:
    """Compare all columns; another process may round probabilities differently."""
    expected, found = read_rows(one), read_rows(other)
    assert [row.keys() for row in expected] == [row.keys() for row in found]
    for expected_row, found_row in zip(expected, found, strict=True):
        for name, value in expected_row.items():
            if value and name.startswith(("confidence", "probability")):
                tolerance = 1e-3 if name == "confidence_quantile" else 1e-5  # quantiles have three decimals
                assert float(found_row[name]) == pytest.approx(float(value), abs=tolerance), name
            else:
                assert found_row[name] == value, name
