"""Real data, where there is some: HEADWISE_DATA names a folder with a folder for each set."""

import os
from pathlib import Path

import pytest

from headwise.tasks import get_task

DATA = os.environ.get("HEADWISE_DATA")

#: The task, its folder, and how many rows train, dev and test have.
SETS = [
    ("ag-news", "ag_news", (16573, 1842, 7600)),
    ("amazon-electronics", "amazon_reviews", (1600, 200, 200)),
    ("amazon-electronics-rating", "amazon_reviews", (1600, 200, 200)),
    ("sst2", "sst2", (6920, 872, 1821)),
    ("sst5", "sst5", (8544, 1101, 2210)),
    ("snli", "snli", (21605, 9842, 9824)),
    ("multinli", "nli", (7851, 982, 982)),
    ("rte", "nli", (2241, 249, 277)),
    ("healthver", "medical", (1725, 192, 1823)),
    ("scifact", "scifact", (4479, 1600, 6000)),
]


@pytest.mark.skipif(DATA is None, reason="HEADWISE_DATA does not name a folder with data")
@pytest.mark.parametrize(("name", "folder", "sizes"), SETS, ids=[name for name, *_ in SETS])
def test_real_data(name: str, folder: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    path = Path(str(DATA), folder)
    if not path.exists():
        pytest.skip(f"no {path}")
    found = get_task(name).load(path, cache=tmp_path)
    assert tuple(len(found.splits[split]) for split in ("train", "dev", "test")) == sizes
    for rows in found.splits.values():
        assert all(rows["text"])
        labels = rows.features["label"]
        assert found.labels == (() if name.endswith("rating") else tuple(labels.names))
