"""Studies on a Ray cluster: workers and nodes die, and every run counts once."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.cluster import connected_to_cluster
from headwise.errors import UserError
from headwise.studies.methods import Method
from headwise.studies.plan import plan_runs
from headwise.studies.ray_tasks import RayTasks
from headwise.studies.scheduler import run_study
from headwise.studies.study import Study
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import ClaimedTrial
from headwise.studies.worker_pool import Resources
from headwise.training import TextConfig
from tests.studies.conftest import create_study, two_method_runs
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
        def wait(self, seconds: float):  # type: ignore[no-untyped-def]
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


class CountedTasks(RayTasks):
    """Tasks that are counted, on a cluster that has these CPUs and GPUs."""

    resources: Mapping[str, float]

    def cluster_resources(self) -> Mapping[str, float]:
        return self.resources

    def _submit(self, claimed: ClaimedTrial, share: float) -> None:
        self.submitted[claimed.trial_id] = claimed, share

    def fill(self, group: str) -> list[float]:
        """Submit runs as long as there is room. Return their shares of a GPU."""
        while self.has_room(group, 1000):
            self.submit(ClaimedTrial(two_method_runs(1)[0], len(self.submitted), group))
        return [share for _, share in self.submitted.values()]


@pytest.mark.parametrize(
    ("kind", "max_jobs", "resources", "peak_mib", "shares"),
    [
        ("compare", None, {"CPU": 3.0}, None, [0.0] * 6),  # twice as many as fit
        ("compare", 2, {"CPU": 3.0}, None, [0.0] * 2),  # --jobs 2
        ("search", None, {"CPU": 3.0}, None, [0.0] * 3),  # later samples know more results
        ("compare", None, {}, None, [0.0]),  # an autoscaler sees the demand
        ("compare", None, {"CPU": 64.0, "GPU": 2.0}, None, [1.0] * 2),  # to be measured
        ("compare", None, {"CPU": 64.0, "GPU": 2.0}, 1_000, [0.2] * 20),  # five share a GPU, and as many are queued
        ("compare", None, {"CPU": 4.0, "GPU": 2.0}, 1_000, [0.2] * 8),  # limited by CPUs
        ("compare", None, {"CPU": 64.0, "GPU": 2.0}, 6_000, [1.0] * 4),  # two do not fit
    ],
)
def test_submission_by_resources(
    kind: str,
    max_jobs: int | None,
    resources: dict[str, float],
    peak_mib: float | None,
    shares: list[float],
    tmp_path: Path,
) -> None:
    tasks = CountedTasks(StudyDir(tmp_path, "study", kind), {}, "", max_jobs)
    tasks.resources = resources
    if peak_mib is not None:
        tasks.shares.measure("plain", peak_mib, gpu_mib=10_000)
    assert tasks.fill("plain") == pytest.approx(shares)


def test_search_on_a_cluster_needs_a_shared_database(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study")
    search = Study(study.study_dir.__class__(study.study_dir.path, "a", "search"), study.trials, study.url)
    with pytest.raises(UserError, match=r"expected --storage postgresql://… or journal:///FILE"):
        search.run(Resources(cluster="127.0.0.1:1"))


def test_search_without_a_shared_database_leaves_no_study(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwise.cli.study_options.check_cluster", lambda address: None)
    options = ["--over", "learning_rate", "1e-4", "1e-2", "--sampler", "tpe", "--trials", "2", "--cluster", "auto"]
    assert main(["sweep", "--data", str(reviews), *options, "--out", str(tmp_path / "study")]) == 2
    assert "expected --storage postgresql://… or journal:///FILE" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_gpus_of_this_machine_are_not_for_a_cluster() -> None:
    with pytest.raises(UserError, match="--gpus is for this machine"):
        Resources(gpus=("0",), cluster="auto")
