"""Parts of jobs: order, repeated attempts, and jobs that are resumed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.errors import UserError
from headwise.training.jobs import JobDir, JobOptions, RowRange, open_job, run_job
from headwise.training.jobs.job import PartFailedError
from tests.training.jobs.counting import CountingTask

PARTS = RowRange.divide(10, 3)


def run(task: Any, job_dir: JobDir | None = None, **options: Any) -> list[int]:
    results = run_job(task, PARTS, JobOptions(**options), job_dir, verb="counting", unit="rows")
    return [number for result in results for number in result["numbers"].tolist()]


@pytest.mark.parametrize("processes", [1, 2])
def test_failed_parts_are_repeated_and_results_stay_in_order(
    processes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = CountingTask(tmp_path, ((0, "raise"), (6, "raise")))
    with caplog.at_level(logging.WARNING, logger="headwise"):
        assert run(task, processes=processes) == list(range(10))
    assert task.attempts(PARTS[0]) == task.attempts(PARTS[2]) == 2
    assert "rows 1 to 3: failed (RuntimeError: the disk has a hiccup); attempt 2 of 3 follows" in caplog.text


def test_part_whose_process_dies_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = CountingTask(tmp_path, ((3, "die"),))
    with caplog.at_level(logging.WARNING, logger="headwise"):
        assert run(task, processes=2) == list(range(10))
    assert task.attempts(PARTS[1]) >= 2
    assert "a process died; its part is repeated" in caplog.text


def test_part_whose_process_always_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.training.jobs.engines.MAX_ATTEMPTS", 1)
    task = CountingTask(tmp_path, ((0, "die"),), num_failures=9)
    with pytest.raises(PartFailedError, match=r"rows 1 to 3: its process died .* use fewer --processes"):
        run(task, processes=2)


def test_invalid_input_is_not_repeated(tmp_path: Path) -> None:
    task = CountingTask(tmp_path, ((3, "refuse"),))
    with pytest.raises(UserError, match="line 7: not a number"):
        run(task)
    assert task.attempts(PARTS[1]) == 1


def test_failure_keeps_finished_parts_and_resume_computes_the_others(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    out = tmp_path / "numbers.txt"
    task = CountingTask(tmp_path / "marks", ((6, "raise"),), num_failures=3)
    with pytest.raises(RuntimeError, match="hiccup"), open_job(out, {"data": 1}, JobOptions()) as job_dir:
        run(task, job_dir)
    with (
        pytest.raises(UserError, match=r"contains an unfinished job; --resume continues it, --force starts again"),
        open_job(out, {"data": 1}, JobOptions()),
    ):
        pass
    with (
        pytest.raises(UserError, match="--resume: the model, the data or an option has changed"),
        open_job(out, {"data": 2}, JobOptions(resume=True)),
    ):
        pass
    with open_job(out, {"data": 1}, JobOptions(resume=True)) as job_dir:
        assert job_dir is not None
        assert run(task, job_dir) == list(range(10))
        outputs = [job_dir.output_path(number).read_text() for number in range(len(PARTS))]
    assert "".join(outputs) == "".join(f"{number}\n" for number in range(10))
    assert [task.attempts(part) for part in PARTS] == [1, 1, 4, 1], "finished parts are not computed again"
    assert not JobDir.next_to(out).path.exists()


def test_force_starts_again(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    out, task = tmp_path / "numbers.txt", CountingTask(tmp_path / "marks")
    failing = CountingTask(tmp_path / "marks", ((9, "raise"),), num_failures=3)
    with pytest.raises(RuntimeError, match="hiccup"), open_job(out, {}, JobOptions()) as job_dir:
        run(failing, job_dir)
    with open_job(out, {}, JobOptions(force=True)) as job_dir:
        assert run(task, job_dir) == list(range(10))
    assert [task.attempts(part) for part in PARTS] == [2, 2, 2, 4]


def test_damaged_result_is_one_line(tmp_path: Path) -> None:
    job_dir = JobDir(tmp_path)
    job_dir.save(0, {"numbers": np.arange(3)})
    job_dir.result_path(0).write_bytes(b"PK")
    with pytest.raises(UserError, match=r"00000000.npz: damaged .*; delete it"):
        job_dir.load(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "--processes must be at least 1, got 0"),
        ({"part_rows": -1}, "--part-rows must be at least 1, got -1"),
        ({"processes": 2, "cluster": "auto"}, "--processes and --cluster cannot be combined"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        JobOptions(**options)
