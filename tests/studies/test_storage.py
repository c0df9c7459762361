"""Databases of studies: URLs, errors and passwords."""

from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.studies import sweep
from headwise.studies.search_space import parse_search_space
from headwise.studies.storage import connect, hide_password, parse_url
from headwise.studies.study import Study
from tests.studies.conftest import create_study, states
from tests.studies.fakes import fake_train, work
from tests.studies.test_sweep import RPR, train_by_heads
from tests.training.conftest import Headwise


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "--storage nonsense: expected postgresql://USER@HOST/DATABASE, journal:///FILE or sqlite:///FILE"),
        ("mysql://host/x", "expected sqlite, postgresql or journal, got mysql"),
        ("journal://relative", "expected journal:///FILE with the absolute path of a file"),
        ("journal:////nowhere/study.log", "--storage journal:////nowhere/study.log: No such file or directory"),
        ("postgresql://me:secret@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
def test_connect_rejects_unusable_databases(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        connect(url)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_passwords_are_not_written(tmp_path: Path, postgresql: str) -> None:
    study = create_study(tmp_path / "study", storage=postgresql.replace("headwise@", "headwise:secret@"))
    assert "secret" not in (tmp_path / "study" / "study.yaml").read_text()
    assert study.study_dir.storage == postgresql


def test_hide_password_keeps_the_rest() -> None:
    assert hide_password("postgresql://me:secret@host/x") == "postgresql://me@host/x"
    assert parse_url("postgresql+psycopg://me:secret@host/x").password == "secret"


def test_journal_holds_studies(tmp_path: Path, headwise: Headwise) -> None:
    url = f"journal:///{tmp_path}/studies.log"
    study = create_study(tmp_path / "study", seeds=2, storage=url)
    work(study, fake_train)
    assert states(Study.resume(tmp_path / "study")) == ["finished"] * 4
    assert len(study.results()) == 4
    assert not list((tmp_path / "study").glob("*.db"))
    code, out, _ = headwise("studies", tmp_path / "study", "--storage", url)
    assert code == 0
    assert "4 finished" in out


def test_search_in_a_journal(tmp_path: Path) -> None:
    """Runs of a search on several machines write to it."""
    space = parse_search_space(RPR, [("heads", "1", "8")])
    url = f"journal:///{tmp_path}/studies.log"
    study = sweep.create_sweep(RPR, space, tmp_path / "sweep", sampler="tpe", trials=3, storage=url)
    work(study, train_by_heads)
    assert states(study) == ["finished"] * 4
