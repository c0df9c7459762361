"""Trained translators at work: files and streams in their order, and what they refuse."""

import gzip
import io
import json
import os
import re
import threading
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.training import RunResult, evaluate, predict
from headwise.training.translation.inference import TranslationModel
from headwise.training.translation.predict import arrived
from tests.training.conftest import Headwise
from tests.training.test_inspect import page_data
from tests.training.translation.conftest import sentences, write

LINES = ["two three", "", "six", "one two three four", "   ", "five"]


@pytest.fixture
def said(run: RunResult) -> list[str]:
    """Each line translated by itself."""
    alone = TranslationModel.load(run.run_dir)
    found = [alone.translate([line], ["line 1"])[0] for line in LINES]
    assert found[1] == found[4] == ""
    assert found[2] == "sechs"
    assert len(set(found)) == 5
    return found


@pytest.mark.parametrize(("name", "out"), [("new.en", "new.de"), ("new.txt.gz", "out.gz")])
def test_lines_keep_their_order(name: str, out: str, run: RunResult, said: list[str], tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert predict(run.run_dir, tmp_path / name, tmp_path / out) == 2
    written = (tmp_path / out).read_bytes()
    assert (gzip.decompress(written) if out.endswith(".gz") else written).decode().split("\n")[:-1] == said


def test_a_stream(run: RunResult, said: list[str], headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in LINES)))
    code, written, err = headwise("predict", run.run_dir, "-", "--out", "-")
    assert (code, written.split("\n")[:-1]) == (0, said)
    assert "2 rows have no text" in err


def test_lines_of_a_stream_are_taken_when_they_come() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as stream, os.fdopen(theirs, "w") as other:
        found = arrived(stream)
        other.write("first\n")
        other.flush()
        assert next(found) == ["first"], "nobody waits for more"

        def later() -> None:
            other.write("second\nthird\n")
            other.close()

        threading.Timer(0.05, later).start()
        rest = [line for chunk in found for line in chunk]
    assert rest == ["second", "third"]


def test_a_table_gets_a_column(run: RunResult, said: list[str], tmp_path: Path) -> None:
    rows = [{"id": n, "en": text} for n, text in enumerate(LINES)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(run.run_dir, tmp_path / "new.jsonl", tmp_path / "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert found == [row | {"predicted": text} for row, text in zip(rows, said, strict=True)]


def test_its_own_test_set_is_judged_as_in_the_run(run: RunResult) -> None:
    found = evaluate(run.run_dir)
    assert found["metrics"] == run.metrics["metrics"]["test"]
    assert found["rows"] == 40
    assert found["signatures"] == run.metrics["signatures"]


def test_other_pairs_are_judged(run: RunResult, tmp_path: Path) -> None:
    write(tmp_path, "more", sentences(20, seed=9))
    assert evaluate(run.run_dir, tmp_path / "more.en")["metrics"]["bleu"] > 80


def test_languages_that_were_not_learnt(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    write(tmp_path, "more", ["one two"])
    code, _, err = headwise("predict", run.run_dir, tmp_path / "more.en", "--target", "fr", "--out", tmp_path / "out")
    assert (code, "translates from en to de, not from en to fr" in err) == (2, True)
    with pytest.raises(UserError, match="not from de to de"):
        evaluate(run.run_dir, source="de")
    with pytest.raises(UserError, match=r"is in de; the run in .* translates from en"):
        predict(run.run_dir, tmp_path / "more.de", tmp_path / "out")
    with pytest.raises(UserError, match="a file in en ends with"):
        evaluate(run.run_dir, tmp_path / "more.de")
    assert not (tmp_path / "out").exists()


def test_a_line_that_is_too_long(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    (tmp_path / "new.en").write_text("one\n" + " ".join(["two"] * 20) + "\n")
    code, _, err = headwise("predict", run.run_dir, tmp_path / "new.en", "--out", tmp_path / "new.de")
    assert code == 2
    assert re.search(r"new\.en, line 2: \d+ tokens, where at most 16 are taken", err)
    assert not (tmp_path / "new.de").exists()
    code, *_ = headwise("predict", run.run_dir, tmp_path / "new.en", "--out", tmp_path / "new.de", "--clip")
    assert code == 0
    assert (tmp_path / "new.de").read_text().splitlines()[0] == "eins"


def test_options_of_other_runs(run: RunResult, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--text does not fit"):
        predict(run.run_dir, tmp_path / "new.en", tmp_path / "out", text="en")
    with pytest.raises(UserError, match="no such file"):
        predict(run.run_dir, tmp_path / "nowhere.en", tmp_path / "out")


def test_a_translators_encoder_can_be_looked_into(run: RunResult, headwise: Headwise, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, _, err = headwise("inspect", run.run_dir, "--text", "two three", "--out", page)
    assert (code, err) == (0, "")
    (text,) = page_data(page)["texts"]
    assert "".join(text["tokens"]).startswith("twothree")
    (shown,) = text["models"]
    assert shown["prediction"] is None
