"""Batches read from Arrow files have the values of the rows, padded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets

from headwise.training.text.arrow_dataset import ArrowDataset, Padding

PADDING = {"input_ids": 7, "labels": -100}


def build_columns(label_type: str, count: int) -> dict[str, list[Any]]:
    generator = np.random.default_rng(0)

    def ids(limit: int) -> list[int]:
        return [int(x) for x in generator.integers(0, 50, generator.integers(1, limit))]

    metadata: dict[str, list[Any]] = {"length": list(range(count)), "truncated": [False] * count}
    if label_type == "documents":
        return {"input_ids": [[ids(9) for _ in range(generator.integers(1, 5))] for _ in range(count)], **metadata}
    labels: dict[str, list[Any]] = {
        "classification": [int(x) for x in generator.integers(0, 3, count)],
        "regression": [float(x) for x in generator.normal(size=count)],
        "multi-label": [[float(x) for x in row] for row in generator.integers(0, 2, (count, 4))],
        "tokens": [ids(9) for _ in range(count)],
    }
    return {"input_ids": [ids(12) for _ in range(count)], "labels": labels[label_type], **metadata}


def pad(rows: list[Any], value: int) -> torch.Tensor:
    """Pad nested lists one number at a time."""
    if not isinstance(rows[0], list):
        return torch.tensor(rows)
    longest = max(map(len, rows))
    if not isinstance(rows[0][0], list):
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])
    widest = max(len(inner) for row in rows for inner in row)
    full = [row + [[]] * (longest - len(row)) for row in rows]
    return torch.tensor([[inner + [value] * (widest - len(inner)) for inner in row] for row in full])


@pytest.mark.parametrize("label_type", ["classification", "regression", "multi-label", "tokens", "documents"])
def test_batches_have_the_values_of_the_rows(label_type: str, tmp_path: Path) -> None:
    halves = []
    for number in (0, 1):  # two files, so that columns have several chunks
        Dataset.from_dict(build_columns(label_type, 40)).save_to_disk(tmp_path / str(number))
        halves.append(Dataset.load_from_disk(tmp_path / str(number)))
    rows = concatenate_datasets(halves)
    dataset = ArrowDataset(rows, lambda name: Padding(PADDING.get(name, 0)))
    indices = [41, 3, 79, 0, 39, 40]
    batch = dataset.__getitems__(indices)
    assert len(dataset) == 80
    assert batch.keys() == set(rows.column_names) - {"length", "truncated"}
    for name, values in batch.items():
        expected = pad([rows[i][name] for i in indices], PADDING.get(name, 0))
        assert values.dtype == expected.dtype
        torch.testing.assert_close(values, expected, rtol=0, atol=0)
