"""Built-in tasks on real data, if HEADWISE_DATA names a directory with a directory for each data set."""

import os
from pathlib import Path

import pytest

from headwise.tasks import get_task

DATA = os.environ.get("HEADWISE_DATA")

#: Task, directory, and sizes of train, dev and test.
DATA_SETS = [
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


@pytest.mark.skipif(DATA is None, reason="HEADWISE_DATA is not set")
@pytest.mark.parametrize(("name", "directory", "sizes"), DATA_SETS, ids=[name for name, *_ in DATA_SETS])
def test_sizes_texts_and_labels(name: str, directory: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    path = Path(str(DATA), directory)
    if not path.exists():
        pytest.skip(f"no {path}")
    examples = get_task(name).load(path, cache=tmp_path)
    assert tuple(len(examples.splits[split]) for split in ("train", "dev", "test")) == sizes
    for rows in examples.splits.values():
        assert all(rows["text"])
        labels = rows.features["label"]
        assert examples.labels == (() if name.endswith("rating") else tuple(labels.names))
