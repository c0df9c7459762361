"""Studies on a Ray cluster: workers and nodes die, and every run counts once. `tests/test_ray.py` runs this file."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwise.cluster import connected_to_cluster
from headwise.studies.methods import Method
from headwise.studies.plan import plan_runs
from headwise.studies.ray_tasks import RayTasks
from headwise.studies.scheduler import run_study
from headwise.studies.study import Study
from headwise.studies.worker import Outcome
from headwise.training import TextConfig
from tests.studies.fakes import fake_train, work
from tests.studies.ray_cluster import LocalCluster, kill, start_cluster, why_no_cluster
from tests.studies.worker_script import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster of three nodes with one CPU each, to which this process is connected."""
    if why_no_cluster():
        pytest.skip(why_no_cluster())
    with start_cluster() as cluster, connected_to_cluster(cluster.address):
        yield cluster


def read_starts(study: Study) -> dict[str, list[str]]:
    """Return process, node and whether it was resumed, of each start of a run."""
    starts = sorted((study.study_dir.path / "starts").glob("*-*[0-9]"))
    return {path.name: path.read_text().split() for path in starts}


def test_study_survives_dead_workers_and_nodes(tmp_path: Path, cluster: LocalCluster) -> None:
    from tests.studies.ray_runs import execute_blocked

    methods = [Method(name, {"model": name}) for name in ("plain", "rpr", "tener")]
    runs = plan_runs([TextConfig(data=("reviews.csv",))], methods, range(3))
    study = Study.create(tmp_path / "study", "compare", runs, baseline="plain")
    places_in_progress: set[str] = set()

    class Observed(RayTasks):
        def wait(self, seconds: float) -> list[Outcome]:
            places_in_progress.update(self.places().values())
            return super().wait(seconds)

    def kill_three() -> None:
        wait_until(lambda: len(read_starts(study)) == 3)  # one on each node, which has one CPU
        starts = list(read_starts(study).values())
        node = next(node for _, node, _ in starts if cluster.is_killable(node))
        for process, place, _ in starts:
            if place != node:
                kill(int(process))
        cluster.kill_node(node)
        cluster.add_node()

    thread = threading.Thread(target=kill_three, daemon=True)
    thread.start()
    run_study(study.study_dir, study.trials, Observed(study.study_dir, study.metadata, study.url, task=execute_blocked))
    thread.join()
    alone = Study.create(tmp_path / "alone", "compare", runs, baseline="plain")
    work(alone, fake_train)
    expected = [(status.run, status.state, status.value) for status in alone.trials.statuses()]
    assert [(status.run, status.state, status.value) for status in study.trials.statuses()] == expected
    assert len(study.trials.study.trials) == 9, "Ray repeats a run within its trial"
    resumed = {name: resumed for name, (_, _, resumed) in read_starts(study).items()}
    assert dict.fromkeys(("plain-0-1", "rpr-0-1", "tener-0-1"), "True").items() <= resumed.items()
    assert len(resumed) == 12, "only killed runs are repeated"
    assert places_in_progress, "the progress shows where runs are"
    assert all(status.trial.user_attrs["place"] for status in study.trials.statuses())


@pytest.mark.slow  # `test_submission_by_resources` covers the rules
def test_runs_share_a_gpu_once_the_first_is_measured(tmp_path: Path, cluster: LocalCluster) -> None:
    from tests.studies.ray_runs import run_out_of_memory, share_gpu

    cluster.add_node(num_cpus=3, num_gpus=1)
    plain = [Method("plain", {"model": "plain"})]
    runs = plan_runs([TextConfig(data=("reviews.csv",))], plain, range(4))
    study = Study.create(tmp_path / "study", "compare", runs, baseline="plain")
    tasks = RayTasks(study.study_dir, study.metadata, study.url, task=share_gpu)
    run_study(study.study_dir, study.trials, tasks)
    assert [status.state for status in study.trials.statuses()] == ["finished"] * 4
    assert tasks.shares.get("reviews.csv, plain") == pytest.approx(0.2)

    again = Study.create(tmp_path / "again", "compare", runs[:1], baseline="plain")
    tasks_again = RayTasks(again.study_dir, again.metadata, again.url, task=run_out_of_memory)
    tasks_again.shares = tasks.shares
    run_study(again.study_dir, again.trials, tasks_again)
    assert [status.state for status in again.trials.statuses()] == ["finished"], "it got a GPU of its own"
    assert tasks.shares.get("reviews.csv, plain") == 1.0
