"""What is to be run, is running and is done: each run once, whoever asks, and none is lost."""

import threading
import time
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.studies.storage import address, connect, shown
from headwise.studies.study import Study
from headwise.studies.trials import ATTEMPTS, Trials
from tests.studies.conftest import begun, planned


def states(ledger: Trials) -> list[str]:
    return [entry.state for entry in ledger.entries()]


def test_every_run_is_claimed_once_by_many_workers(tmp_path: Path, storage: str | None) -> None:
    study = begun(tmp_path / "study", seeds=6, storage=storage)
    claimed: list[tuple[str, str, int]] = []

    def pull(name: str) -> None:
        ledger = Trials(connect(study.url), study.folder.name)
        while (claim := ledger.claim(name)) is not None:
            claimed.append(claim.run.key)
            ledger.finished(claim, 0.5)

    threads = [threading.Thread(target=pull, args=(f"worker {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(run.key for run in planned(6))
    assert states(study.ledger) == ["finished"] * 12


def test_what_is_enqueued_again_is_there_once(tmp_path: Path) -> None:
    study = begun(tmp_path / "study")
    study.ledger.enqueue(planned(2))
    assert [entry.run.key for entry in study.ledger.entries()] == [run.key for run in planned(2)]
    assert all(entry.run == run for entry, run in zip(study.ledger.entries(), planned(2), strict=True))


def test_a_run_whose_worker_gives_no_sign_of_life_goes_to_another(tmp_path: Path, storage: str | None) -> None:
    study = begun(tmp_path / "study", seeds=1, storage=storage)
    quick = Trials(connect(study.url, heartbeat=1, grace=1), study.folder.name)
    first = quick.claim("first")
    assert first is not None
    other = quick.claim("second")
    assert other is not None
    assert other.run != first.run, "while the first may live, its run is its own"
    deadline = time.monotonic() + 30
    while (again := quick.claim("second")) is None:
        quick.alive(other)
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert again.run == first.run
    quick.finished(first, 0.1)  # it lived after all, but too late
    assert quick.alive(first) is False
    quick.finished(again, 0.9)
    quick.finished(other, 0.5)
    assert sorted(entry.value or 0 for entry in quick.entries()) == [0.5, 0.9], "each counts once"


def test_a_run_that_kills_its_workers_is_given_up(tmp_path: Path) -> None:
    ledger = begun(tmp_path / "study", seeds=1).ledger
    for attempt in range(ATTEMPTS):
        claim = ledger.claim(f"worker {attempt}")
        assert claim is not None
        assert claim.run.method == "plain"
        ledger.lost(f"worker {attempt}")
    assert states(ledger) == ["failed", "waiting"]
    assert ledger.entries()[0].error == "its workers died"


def test_interruptions_are_no_deaths(tmp_path: Path) -> None:
    ledger = begun(tmp_path / "study", seeds=1).ledger
    for _ in range(2 * ATTEMPTS):
        claim = ledger.claim("worker")
        assert claim is not None
        ledger.interrupted(claim)
    assert states(ledger) == ["waiting", "waiting"]


def test_resume_tries_what_failed_again_and_adds_seeds(tmp_path: Path) -> None:
    out = tmp_path / "study"
    ledger = begun(out, seeds=2).ledger
    claim = ledger.claim("worker")
    assert claim is not None
    ledger.failed(claim, "out of luck")
    assert states(ledger) == ["failed", "waiting", "waiting", "waiting"]
    assert ledger.entries()[0].error == "out of luck"
    assert states(Study.resume(out).ledger) == ["waiting"] * 4
    more = Study.resume(out, seeds=3).ledger
    assert [entry.run for entry in more.entries()] == planned(3)
    with pytest.raises(UserError, match=r"--seeds 1: the study in .* has 3 already"):
        Study.resume(out, seeds=1)


def test_a_folder_that_is_taken(tmp_path: Path) -> None:
    begun(tmp_path / "study")
    with pytest.raises(UserError, match="holds a study; --resume goes on with it"):
        begun(tmp_path / "study")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and holds no study"):
        begun(tmp_path / "mine")
    with pytest.raises(UserError, match=r"holds no study \(study.yaml is missing\)"):
        Study.resume(tmp_path / "mine")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense", "--storage nonsense: expected postgresql://USER@HOST/DATABASE or sqlite:///FILE"),
        ("mysql://host/x", "a study is kept in sqlite or postgresql, not in mysql"),
        ("postgresql://me:secret@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
def test_databases_that_cannot_be(url: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as mistake:
        connect(url)
    assert "secret" not in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_passwords_are_not_written(tmp_path: Path, postgresql: str) -> None:
    study = begun(tmp_path / "study", storage=postgresql.replace("headwise@", "headwise:secret@"))
    assert "secret" not in (tmp_path / "study" / "study.yaml").read_text()
    assert study.folder.storage == postgresql
    assert shown("postgresql://me:secret@host/x") == "postgresql://me@host/x"
    assert address("postgresql+psycopg://me:secret@host/x").password == "secret"
