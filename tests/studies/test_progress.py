"""Progress of a study: one line for each run that ended."""

import logging
from pathlib import Path

import pytest

from headwise.studies.progress import Progress
from headwise.studies.scheduler import Scheduler
from tests.studies.conftest import create_study


def test_one_line_for_each_ended_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwise.studies")
    study = create_study(tmp_path / "study", seeds=1)
    with Progress(study.study_dir) as progress:
        progress.update(study.trials.statuses(), num_to_start=2)
        scheduler = Scheduler(study.trials)
        finished = scheduler.claim()
        assert finished is not None
        study.trials.finish(finished, 0.75)
        failed = scheduler.claim()
        assert failed is not None
        log = study.study_dir.log_path(failed.run)
        log.parent.mkdir()
        log.write_text("10%\r20%\r30%\nTraceback\nValueError: bad luck\n")
        study.trials.fail(failed, "bad luck")
        progress.update(study.trials.statuses(), num_to_start=0)
    output = capsys.readouterr().err
    assert "[1/2] reviews.csv, plain, seed 0: 0.7500 (0 s)\n" in output
    assert "[2/2] reviews.csv, rpr, seed 0: failed: bad luck\n    30%\n    Traceback\n    ValueError: bad" in output
    assert f"log: {log}" in output


def test_quiet_unless_info_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headwise.studies")
    study = create_study(tmp_path / "study", seeds=1)
    claimed = Scheduler(study.trials).claim()
    assert claimed is not None
    study.trials.finish(claimed, 0.75)
    with Progress(study.study_dir) as progress:
        progress.update(study.trials.statuses(), num_to_start=1)
    assert capsys.readouterr().err == ""
