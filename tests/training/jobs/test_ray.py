"""Jobs and training on a Ray cluster of two nodes, processes on this machine."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headwise.training.jobs import JobOptions, RowRange, run_job
from tests.studies.ray_cluster import start_cluster, why_no_cluster
from tests.training.conftest import Headwise, rows, write
from tests.training.jobs.counting import CountingTask

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster())]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with start_cluster(num_nodes=2) as nodes:
        yield nodes.address


def test_parts_of_a_dead_process_are_repeated(cluster: str, tmp_path: Path) -> None:
    task = CountingTask(tmp_path, ((0, "die"), (4, "raise")))
    parts = RowRange.divide(10, 2)
    results = run_job(task, parts, JobOptions(cluster=cluster), verb="counting", unit="rows")
    assert [number for result in results for number in result["numbers"].tolist()] == list(range(10))
    assert [task.attempts(part) for part in (parts[0], parts[2])] == [2, 2]


def test_prediction_is_that_of_one_process(cluster: str, run: Path, tmp_path: Path, headwise: Headwise) -> None:
    source = write(tmp_path / "new.csv", ("text",), [(text,) for text, _ in rows(30, seed=5)])
    for out, options in (("one.csv", ()), ("cluster.csv", ("--cluster", cluster))):
        code, _, err = headwise("predict", run, source, "--out", tmp_path / out, "--part-rows", 10, *options)
        assert code == 0, err
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "cluster.csv").read_text()
    broken = write(tmp_path / "broken.jsonl", ("{",), [])
    code, _, err = headwise("predict", run, broken, "--out", tmp_path / "x.csv", "--cluster", cluster)
    assert code == 2
    assert "broken.jsonl, line 1: invalid JSON" in err


def test_training_is_that_of_one_process(cluster: str, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(80)))
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 2, "--batch-size", 16, "--dropout", 0)
    outs = tmp_path / "one", tmp_path / "two"
    assert headwise("train", "--data", data, *options, "--out", outs[0])[0] == 0
    code, stdout, err = headwise(
        "train", "--data", data, *options, "--out", outs[1], "--cluster", cluster, "--processes", 2
    )
    assert code == 0, err
    assert "accuracy" in stdout
    assert err.count("labels: ") == 1  # what the main process prints
    assert "Ray" not in err
    one, two = (pq.read_table(out / "predictions.parquet").to_pydict() for out in outs)
    assert one["row"] == two["row"]
    np.testing.assert_allclose(one["scores"], two["scores"], atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "reviews.csv", "two"]
    code, _, err = headwise("train", "--data", data, *options, "--out", outs[1], "--cluster", cluster)
    assert code == 2
    assert "contains a finished run; --force replaces it" in err
