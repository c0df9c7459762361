"""A file's size is not what reading it needs."""

import tracemalloc
from pathlib import Path

import pyarrow as pa

from headwise.tasks import load_files
from tests.tasks.files import write


def test_a_file_is_never_whole_in_memory(tmp_path: Path) -> None:
    count, words = 40_000, "some words " * 50
    columns = {"text": [f"{words}{number}" for number in range(count)], "label": ["a", "b"] * (count // 2)}
    path = write(tmp_path / "a.csv", columns)
    del columns
    before = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    _, found = load_files(path, cache=tmp_path / "cache")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = path.stat().st_size
    assert size > 22_000_000
    assert peak < size / 4
    assert pa.default_memory_pool().max_memory() - before < size / 2
    assert len(found.splits["train"]) == 32_000
