"""How many runs of a study are submitted to a Ray cluster, and what is refused. `ray_studies.py` uses a cluster."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.studies.ray_tasks import RayTasks
from headwise.studies.study import Study
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import ClaimedTrial
from headwise.studies.worker_pool import Resources
from tests.studies.conftest import create_study, two_method_runs


class CountedTasks(RayTasks):
    """Tasks that are counted, on a cluster that has these CPUs and GPUs."""

    resources: Mapping[str, float]

    def cluster_resources(self) -> Mapping[str, float]:
        return self.resources

    def _submit(self, claimed: ClaimedTrial, share: float) -> None:
        self.submitted[claimed.trial_id] = claimed, share

    def fill(self, group: str) -> list[float]:
        """Submit runs as long as there is room. Return their shares of a GPU."""
        while self.has_capacity(group, 1000):
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
