"""Error messages are one printable line, whatever the file contains that they quote."""

from pathlib import Path

import pytest

from headwise.errors import MAX_LENGTH, UserError
from tests.training.conftest import Headwise, headwise

__all__ = ["headwise"]


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "\x1b[2J", "\u2028", "\x85", "\udc80", "\0", "\u202e", "\x7f"])
def test_control_characters_are_escaped(text: str) -> None:
    message = str(UserError(f"no column {text}; expected text"))
    assert message.isprintable()
    assert message.startswith("no column ")
    assert message.endswith("; expected text")


def test_printable_text_is_not_changed() -> None:
    assert str(UserError("größe 漢 “x”: C:\\data")) == "größe 漢 “x”: C:\\data"


def test_long_messages_keep_their_ends() -> None:
    message = str(UserError("data.csv: the columns are " + "x, " * 10_000 + "; name one with --text"))
    assert len(message) <= MAX_LENGTH
    assert message.startswith("data.csv: the columns are ")
    assert message.endswith("; name one with --text")


def test_hostile_column_names_are_printed_in_one_line(headwise: Headwise, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text('"a\x1b[2J\nb",c,d\n1,2,3\n', encoding="utf-8")
    code, _, err = headwise("train", "--data", data, "--out", tmp_path / "run")
    assert code == 2
    assert err.startswith("headwise: error: ")
    assert err.count("\n") == 1
    assert "\x1b" not in err
