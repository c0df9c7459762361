"""Creating, resuming and reading studies."""

import json
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.studies.scheduler import Scheduler
from headwise.studies.study import Study
from tests.studies.conftest import create_study, states, two_method_runs
from tests.studies.fakes import fake_train, work


def test_resume_retries_failed_runs_and_adds_seeds(tmp_path: Path) -> None:
    out = tmp_path / "study"
    study = create_study(out, seeds=2)
    claimed = Scheduler(study.trials).claim()
    assert claimed is not None
    study.trials.fail(claimed, "out of luck")
    assert states(study) == ["failed", "waiting", "waiting", "waiting"]
    assert study.trials.statuses()[0].error == "out of luck"
    assert states(Study.resume(out)) == ["waiting"] * 4
    larger = Study.resume(out, seeds=3)
    assert [status.run for status in larger.trials.statuses()] == two_method_runs(3)
    with pytest.raises(UserError, match=r"--seeds 1: the study in .* already has 3 seeds"):
        Study.resume(out, seeds=1)


def test_create_needs_an_empty_folder(tmp_path: Path) -> None:
    create_study(tmp_path / "study")
    with pytest.raises(UserError, match="contains a study; --resume continues it"):
        create_study(tmp_path / "study")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and contains no study"):
        create_study(tmp_path / "mine")
    with pytest.raises(UserError, match=r"contains no study \(study.yaml is missing\)"):
        Study.resume(tmp_path / "mine")


def test_results_are_read_from_disk(tmp_path: Path) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    work(study, fake_train)
    results = study.results()
    assert [(result.task, result.method, result.seed) for result in results] == [run.key for run in two_method_runs(1)]
    assert all(result.metrics == json.loads((result.run_dir / "metrics.json").read_text()) for result in results)
