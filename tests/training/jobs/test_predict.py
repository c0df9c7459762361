"""`headwise predict` and `headwise evaluate` in parts: the same rows in the same order, whatever the parts are."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tqdm import tqdm

from headwise.errors import UserError
from headwise.training import TextModel, evaluate, predict
from headwise.training.jobs import JobDir
from tests.training.conftest import Headwise, rows, write
from tests.training.jobs.predictions import assert_same_predictions, read_rows

TEXTS = [text if index % 7 else " " for index, (text, _) in enumerate(rows(30, seed=5))]


def write_texts(path: Path, texts: list[str] = TEXTS) -> Path:
    numbers = [str(number) for number in range(len(texts))]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"id": numbers, "text": texts}), path, row_group_size=9)
        return path
    return write(path, ("id", "text"), list(zip(numbers, texts, strict=True)))


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl.gz", "out.parquet"])
def test_parts_do_not_change_the_output(name: str, run: Path, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "new.csv")
    whole, parts = tmp_path / f"whole-{name}", tmp_path / f"parts-{name}"
    assert predict(run, source, whole) == predict(run, source, parts, part_rows=4) == 5
    assert len(read_rows(whole)) == 30
    assert_same_predictions(whole, parts)
    if name.endswith(".parquet"):
        assert pq.ParquetFile(parts).num_row_groups == 8, "one for each part"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["new.csv", whole.name, parts.name])


def test_row_groups_of_parquet_are_kept(run: Path, tmp_path: Path) -> None:
    source, out = write_texts(tmp_path / "new.parquet"), tmp_path / "out.parquet"
    predict(run, source, out, part_rows=9)
    metadata = pq.read_metadata(out)
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [9, 9, 9, 3]
    assert pq.read_table(out)["id"].to_pylist() == [str(number) for number in range(30)]


def test_several_files_are_written_to_a_directory(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for name, texts in (("a.csv", TEXTS[:11]), ("b.parquet", TEXTS[11:])):
        write_texts(shards / name, texts)
    code, stdout, _ = headwise("predict", run, shards, "--out", tmp_path / "labelled", "--part-rows", 4)
    assert (code, stdout) == (0, f"Predictions are in {tmp_path / 'labelled'}\n")
    assert sorted(path.name for path in (tmp_path / "labelled").iterdir()) == ["a.csv", "b.parquet"]
    assert len((tmp_path / "labelled" / "a.csv").read_text().splitlines()) == 12
    assert pq.read_metadata(tmp_path / "labelled" / "b.parquet").num_rows == 19
    for options in ((), ("--resume",)):  # there is nothing to resume
        files = (shards / "a.csv", shards / "b.parquet")
        code, _, err = headwise("predict", run, *files, "--out", tmp_path / "labelled", *options)
        assert code == 2
        assert "a.csv: the file exists; --force replaces it" in err
    with pytest.raises(UserError, match=r"a.csv: two input files have this name"):
        predict(run, [shards / "a.csv", shards / "a.csv"], tmp_path / "twice")


def test_stopped_prediction_is_resumed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, whole, out = write_texts(tmp_path / "new.csv"), tmp_path / "whole.csv", tmp_path / "out.csv"
    predict(run, source, whole, part_rows=10)
    scores, calls = TextModel.scores, []

    def stop_at_third_call(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scores(*args)

    monkeypatch.setattr(TextModel, "scores", stop_at_third_call)
    with pytest.raises(KeyboardInterrupt):
        predict(run, source, out, part_rows=10)
    assert not out.exists()
    with pytest.raises(UserError, match="unfinished job; --resume continues it"):
        predict(run, source, out, part_rows=10)
    with pytest.raises(UserError, match="--resume: the model, the data or an option has changed"):
        predict(run, source, out, part_rows=5, resume=True)
    calls.clear()
    assert predict(run, source, out, part_rows=10, resume=True) == 5
    assert len(calls) == 1, "finished parts are not computed again"
    assert out.read_text() == whole.read_text()
    assert not JobDir.next_to(out).path.exists()


@pytest.mark.long
def test_two_processes_write_what_one_does(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    source, outs = write_texts(tmp_path / "new.csv"), [tmp_path / "1.csv", tmp_path / "2.csv"]
    for processes, out in enumerate(outs, 1):
        options = ("--processes", processes, "--part-rows", 10, "--safe-csv")
        code, _, err = headwise("predict", run, source, "--out", out, *options)
        assert code == 0, err
    assert_same_predictions(*outs)


def test_parts_do_not_change_an_evaluation(run: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "new.csv", ("text", "label"), list(rows(30, seed=5)))
    whole = evaluate(run, data)
    parts = evaluate(run, data, out=tmp_path / "metrics.json", part_rows=7)
    assert (parts["rows"], parts["confusion_matrix"]) == (30, whole["confusion_matrix"])
    assert parts["metrics"] == pytest.approx(whole["metrics"])
    with pytest.raises(UserError, match="--resume requires --out"):
        evaluate(run, data, resume=True)


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_quiet_shows_no_bar(
    quiet: tuple[str, ...], run: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    disabled = []

    def record(*args: Any, **options: Any) -> Any:
        disabled.append(bool(options["disable"]))
        return tqdm(*args, **options)

    monkeypatch.setattr("headwise.training.jobs.job.tqdm", record)
    data = write(tmp_path / "new.csv", ("text", "label"), rows(8, seed=5))
    assert headwise("predict", run, data, "--out", tmp_path / "out.csv", *quiet)[0] == 0
    assert headwise("evaluate", run, "--data", data, *quiet)[0] == 0
    assert disabled == [bool(quiet)] * 2
