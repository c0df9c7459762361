"""Databases of studies: URLs, errors and passwords."""

from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.studies.storage import connect, hide_password, parse_url
from tests.studies.conftest import create_study


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "--storage nonsense: expected postgresql://USER@HOST/DATABASE or sqlite:///FILE"),
        ("mysql://host/x", "expected sqlite or postgresql, got mysql"),
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
