"""Batches straight from files are those that rows give one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets

from headwise.training.text.arrow_dataset import ArrowDataset
from headwise.training.text.encoding import padded

FILLING = {"input_ids": 7, "labels": -100}


def rows_of(label_type: str, count: int) -> dict[str, list[Any]]:
    drawn = np.random.default_rng(0)

    def ids(most: int) -> list[int]:
        return [int(x) for x in drawn.integers(0, 50, drawn.integers(1, most))]

    length: dict[str, list[Any]] = {"length": list(range(count)), "cut": [False] * count}
    if label_type == "documents":
        return {"input_ids": [[ids(9) for _ in range(drawn.integers(1, 5))] for _ in range(count)], **length}
    labels: dict[str, list[Any]] = {
        "classes": [int(x) for x in drawn.integers(0, 3, count)],
        "ratings": [float(x) for x in drawn.normal(size=count)],
        "several": [[float(x) for x in row] for row in drawn.integers(0, 2, (count, 4))],
        "tags": [ids(9) for _ in range(count)],
    }
    return {"input_ids": [ids(12) for _ in range(count)], "labels": labels[label_type], **length}


@pytest.mark.parametrize("label_type", ["classes", "ratings", "several", "tags", "documents"])
def test_batches_are_what_rows_give_one_by_one(label_type: str, tmp_path: Path) -> None:
    halves = []
    for number in (0, 1):  # two files, so that rows lie in several pieces
        Dataset.from_dict(rows_of(label_type, 40)).save_to_disk(tmp_path / str(number))
        halves.append(Dataset.load_from_disk(tmp_path / str(number)))
    rows = concatenate_datasets(halves)
    encoded = ArrowDataset(rows, lambda name: FILLING.get(name, 0))
    chosen = [41, 3, 79, 0, 39, 40]
    batch = encoded.__getitems__(chosen)
    assert len(encoded) == 80
    assert batch.keys() == set(rows.column_names) - {"length", "cut"}
    for name, found in batch.items():
        expected = padded([rows[i][name] for i in chosen], FILLING.get(name, 0))
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
