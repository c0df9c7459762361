"""Jobs and training on a Ray cluster of three nodes, processes on this machine. `tests/test_ray.py` runs this file."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.training import ray_train
from headwise.training.jobs import JobOptions, RowRange, run_job
from headwise.training.jobs.job import MAX_ATTEMPTS, PartFailedError
from tests.studies.ray_cluster import LocalCluster, start_cluster, why_no_cluster
from tests.studies.worker_script import wait_until
from tests.training.conftest import Headwise, rows, write
from tests.training.jobs.counting import CountingTask
from tests.training.jobs.dying import read_starts, run_dying_worker
from tests.training.jobs.predictions import assert_same_predictions

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster())]


PARTS = RowRange.divide(10, 2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalCluster]:
    with start_cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes: LocalCluster) -> str:
    return nodes.address


def count(task: CountingTask, cluster: str) -> Iterator[int]:
    for result in run_job(task, PARTS, JobOptions(cluster=cluster), verb="counting", unit="rows"):
        yield from result["numbers"].tolist()


def test_parts_of_a_dead_process_are_repeated(cluster: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    task = CountingTask(tmp_path, ((0, "die"), (4, "raise")))
    assert list(count(task, cluster)) == list(range(10))
    assert [task.attempts(part) for part in PARTS] == [2, 1, 2, 1, 1]
    assert capfd.readouterr().out == "", "messages of Ray are logged"


def test_cluster_is_named_by_its_address(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` does not state which cluster is used."""
    caplog.set_level("INFO")
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    assert list(count(CountingTask(tmp_path), "auto")) == list(range(10))
    assert f"starting on the Ray cluster {cluster}: parts 5, nodes 3, CPUs 3" in caplog.messages


def test_parts_of_a_dead_node_are_repeated(nodes: LocalCluster, tmp_path: Path) -> None:
    """No other node takes its place."""
    task = CountingTask(tmp_path, tuple((part.start, "wait") for part in PARTS))

    def kill_one() -> None:
        wait_until(lambda: sum(map(task.attempts, PARTS)) == 3)  # one on each node, which has one CPU
        nodes.kill_node(next(filter(nodes.is_killable, nodes.nodes)))
        task.end_waiting()

    thread = threading.Thread(target=kill_one, daemon=True)
    thread.start()
    assert list(count(task, nodes.address)) == list(range(10))
    thread.join()
    assert sum(map(task.attempts, PARTS)) == len(PARTS) + 1, "only the part of the dead node is repeated"
    nodes.add_node()


@pytest.mark.parametrize(
    ("failure", "message"),
    [("die", "its process died 3 times on the cluster"), ("raise", r"failed 3 times .*RuntimeError: the disk has")],
)
def test_part_that_always_fails_is_one_line(failure: str, message: str, cluster: str, tmp_path: Path) -> None:
    task = CountingTask(tmp_path, ((4, failure),), num_failures=9)
    with pytest.raises(PartFailedError, match=f"rows 5 to 6: {message}"):
        list(count(task, cluster))
    assert task.attempts(PARTS[2]) == MAX_ATTEMPTS


def test_invalid_input_is_not_repeated(cluster: str, tmp_path: Path) -> None:
    task = CountingTask(tmp_path, ((4, "refuse"),))
    with pytest.raises(UserError, match="line 7: not a number"):
        list(count(task, cluster))
    assert task.attempts(PARTS[2]) == 1


def test_prediction_is_that_of_one_process(cluster: str, run: Path, tmp_path: Path, headwise: Headwise) -> None:
    source = write(tmp_path / "new.csv", ("text",), [(text,) for text, _ in rows(30, seed=5)])
    for out, options in (("one.csv", ()), ("cluster.csv", ("--cluster", cluster))):
        code, _, err = headwise("predict", run, source, "--out", tmp_path / out, "--part-rows", 10, *options)
        assert code == 0, err
    assert_same_predictions(tmp_path / "one.csv", tmp_path / "cluster.csv")
    broken = write(tmp_path / "broken.jsonl", ("{",), [])
    code, _, err = headwise("predict", run, broken, "--out", tmp_path / "x.csv", "--cluster", cluster)
    assert code == 2
    assert "broken.jsonl, line 1: invalid JSON" in err


def test_paths_are_relative_to_the_directory_of_the_command(
    cluster: str, run: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes were started in another one. All results are those of one process."""
    write(tmp_path / "new.csv", ("text", "label"), list(rows(30, seed=5)))
    monkeypatch.chdir(tmp_path)
    model = os.path.relpath(run)
    for name, options in (("one", ()), ("cluster", ("--cluster", cluster))):
        for command in (
            ("predict", model, "new.csv", "--out", f"{name}.csv"),
            ("evaluate", model, "--data", "new.csv", "--out", f"{name}.json"),
            ("inspect", model, "--data", "new.csv", "--out", name),
        ):
            code, _, err = headwise(*command, "--part-rows", 10, *options)
            assert code == 0, err
    assert Path("one.csv").read_bytes() == Path("cluster.csv").read_bytes()
    assert Path("one.json").read_bytes() == Path("cluster.json").read_bytes()
    files = [path for path in Path("one").rglob("*") if path.is_file()]
    assert Path("one/statistics.json") in files
    for path in files:
        assert path.read_bytes() == Path("cluster", path.relative_to("one")).read_bytes(), path
    assert not list(tmp_path.glob(".*")), "nothing is left"


TRAINING = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 2, "--batch-size", 16, "--dropout", 0)
NUM_EPOCH_STEPS = 4  # of the 80 texts, some are dev and test


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("reviews") / "reviews.csv", ("text", "label"), list(rows(80)))


@pytest.fixture
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


def test_training_is_that_of_one_process(
    cluster: str, reviews: Path, marks: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its processes dies. The run continues from its checkpoint."""
    monkeypatch.setattr(ray_train, "run_worker", partial(run_dying_worker, marks=marks, num_deaths=1))
    outs = tmp_path / "one", tmp_path / "two"
    assert headwise("train", "--data", reviews, *TRAINING, "--out", outs[0])[0] == 0
    code, stdout, err = headwise(
        "train", "--data", reviews, *TRAINING, "--out", outs[1], "--cluster", cluster, "--processes", 2
    )
    assert code == 0, err
    assert "accuracy" in stdout
    starts = read_starts(marks)  # on a busy machine, Ray may start it once more
    assert [starts[0], *set(starts[1:])] == [0, NUM_EPOCH_STEPS]
    assert "a process or node died; the run continues from its last checkpoint" in err
    assert err.count("labels: ") == len(starts)  # what the main process prints at each start
    assert "Traceback" not in err
    one, two = (pq.read_table(out / "predictions.parquet").to_pydict() for out in outs)
    assert one["row"] == two["row"]
    np.testing.assert_allclose(one["scores"], two["scores"], atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    code, _, err = headwise("train", "--data", reviews, *TRAINING, "--out", outs[1], "--cluster", cluster)
    assert code == 2
    assert "contains a finished run; --force replaces it" in err


def test_training_whose_process_always_dies_is_one_line(
    cluster: str, reviews: Path, marks: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_train, "run_worker", partial(run_dying_worker, marks=marks, num_deaths=99))
    monkeypatch.setattr(ray_train, "MAX_FAILURES", 1)  # a start takes several seconds
    out = tmp_path / "run"
    code, stdout, err = headwise("train", "--data", reviews, *TRAINING, "--out", out, "--cluster", cluster)
    assert code == 2
    assert not stdout
    assert read_starts(marks) == [0, NUM_EPOCH_STEPS]
    last_line = err.splitlines()[-1]
    assert last_line.startswith(f"headwise: error: {out}: the run failed 2 times on the cluster (The actor is dead")
    assert last_line.endswith(f"; to continue it: headwise train --resume --out {out} --cluster {cluster}")
    assert len(last_line) < 600, "Ray's explanation is shortened"
    assert "Traceback" not in err
    assert not list(tmp_path.glob(".run.ray-*"))
    assert not (out / "metrics.json").exists()
