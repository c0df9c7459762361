"""`headwise evaluate` and `headwise predict` with a finished run."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.tasks.formats import read_head
from headwise.training import RunResult, TextConfig, train
from headwise.training.core.printing import format_result
from headwise.training.core.table_writer import TableFormat
from tests.short_form import keep_short
from tests.training.conftest import Headwise, rows, write

NEW_FILES = ("new.csv", "new.tsv", "new.jsonl", "new.parquet", "new.csv.gz", "new.jsonl.gz")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    data = write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(160)))
    config = TextConfig(
        data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=6, learning_rate=0.01, batch_size=16
    )
    return train(config, tmp_path_factory.mktemp("runs") / "run")


def test_evaluate_gives_the_metrics_of_the_run(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    code, stdout, _ = headwise("evaluate", run.run_dir, "--out", tmp_path / "metrics.json")
    assert code == 0
    evaluation = json.loads((tmp_path / "metrics.json").read_text())
    assert evaluation["metrics"] == pytest.approx(run.metrics["metrics"]["test"])
    assert f"accuracy {evaluation['metrics']['accuracy']:.4f} ± " in stdout


def test_evaluate_on_another_file(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    new = rows(50, seed=9)
    data = write(tmp_path / "new.csv", ("text", "label"), list(new))
    assert headwise("evaluate", run.run_dir, "--data", data, "--out", tmp_path / "right.json")[0] == 0
    flipped = [(text, "negative" if label == "positive" else "positive") for text, label in new]
    data = write(tmp_path / "flipped.csv", ("text", "label"), list(flipped))
    assert headwise("evaluate", run.run_dir, "--data", data, "--out", tmp_path / "flipped.json")[0] == 0
    right, wrong = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("right", "flipped"))
    assert right["rows"] == 50
    assert right["metrics"]["accuracy"] == pytest.approx(1 - wrong["metrics"]["accuracy"])
    assert right["metrics"]["accuracy"] > 0.8


def test_evaluate_skips_unknown_labels_if_asked_to(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    new = [*rows(20, seed=9), ("a strange film", "neutral"), ("an odd film", "neutral")]
    data, out = write(tmp_path / "new.csv", ("text", "label"), new), tmp_path / "metrics.json"
    code, _, stderr = headwise("evaluate", run.run_dir, "--data", data)
    assert code == 2
    assert "line 22: label 'neutral' is unknown" in stderr
    assert "(2 rows have an unknown label); correct the labels, or skip these rows with --skip-bad-rows" in stderr
    code, _, stderr = headwise("evaluate", run.run_dir, "--data", data, "--skip-bad-rows", "--out", out)
    assert code == 0
    assert stderr.count("2 rows have an unknown label") == 1
    assert json.loads(out.read_text())["rows"] == 20
    data = write(tmp_path / "none.csv", ("text", "label"), new[20:])
    assert headwise("evaluate", run.run_dir, "--data", data, "--skip-bad-rows")[0] == 2


@pytest.mark.parametrize("name", keep_short(NEW_FILES, "new.tsv", "new.parquet", "new.jsonl.gz"))
def test_predict_adds_columns_to_the_rows(run: RunResult, name: str, tmp_path: Path, headwise: Headwise) -> None:
    texts = [text for text, _ in rows(1500, seed=3)]  # more than a batch
    columns: dict[str, list[Any]] = {"id": list(range(len(texts))), "text": texts, "note": ['é, "x"'] * len(texts)}
    source, out = tmp_path / name, tmp_path / f"labelled-{name}"
    save(source, columns)
    assert headwise("predict", run.run_dir, source, "--out", out)[0] == 0
    output = load(out)
    assert [int(x) for x in output["id"]] == columns["id"], "the order of the rows has changed"
    assert output["text"] == texts
    assert output["note"] == columns["note"]
    probabilities = np.array([[float(x) for x in output[f"probability_{label}"]] for label in ("negative", "positive")])
    np.testing.assert_allclose(probabilities.sum(axis=0), 1.0, atol=1e-5)
    assert output["predicted"] == [("negative", "positive")[i] for i in probabilities.argmax(axis=0)]
    expected = ["positive" if any(w in t for w in ("good", "fine", "great", "lovely")) else "negative" for t in texts]
    assert np.mean([a == b for a, b in zip(output["predicted"], expected, strict=True)]) > 0.8


@pytest.mark.parametrize("name", ["new.csv", "new.tsv.gz", "new.jsonl", "new.parquet"])
def test_predictions_on_standard_output_are_those_of_a_file(
    run: RunResult, name: str, tmp_path: Path, headwise: Headwise
) -> None:
    source = tmp_path / name
    save(source, {"id": [1, 2], "text": ["a good film", "é, a dull film"]})
    extension = {"new.tsv.gz": ".tsv", "new.parquet": ".jsonl"}.get(name, source.suffix)
    assert headwise("predict", run.run_dir, source, "--out", tmp_path / f"out{extension}")[0] == 0
    code, stdout, _ = headwise("predict", run.run_dir, source, "--out", "-")
    assert code == 0
    assert stdout == (tmp_path / f"out{extension}").read_text(encoding="utf-8")
    assert not Path("-").exists()


def test_standard_output_takes_one_file(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    files = [write(tmp_path / name, ("text",), [("a good film",)]) for name in ("a.csv", "b.csv")]
    for args, message in ((files, "takes the predictions of one file"), ([files[0], "--resume"], "--resume")):
        code, stdout, err = headwise("predict", run.run_dir, *args, "--out", "-")
        assert (code, stdout) == (2, "")
        assert message in err


def save(path: Path, columns: dict[str, list[Any]]) -> None:
    records = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.name:
            file.writelines(json.dumps(record) + "\n" for record in records)
        elif ".tsv" in path.name:
            file.write("\t".join(columns) + "\n")
            file.writelines("\t".join(map(str, record.values())) + "\n" for record in records)
        else:
            csv.writer(file).writerows([list(columns), *(record.values() for record in records)])


def load(path: Path) -> dict[str, list[Any]]:
    if path.suffix == ".parquet":
        columns: dict[str, list[Any]] = pq.read_table(path).to_pydict()
        return columns
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if ".jsonl" in path.name:
            records = [json.loads(line) for line in file]
        elif ".tsv" in path.name:
            records = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        else:
            records = list(csv.DictReader(file))
    return {name: [record[name] for record in records] for name in records[0]}


def test_rows_without_text_get_no_label(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "new.csv", ("text",), [("a good film",), ("  ",), ("a dull film",)])
    code, _, err = headwise("predict", run.run_dir, data, "--out", tmp_path / "out.csv")
    assert code == 0
    assert "1 row has no text and got no answer" in err
    assert [bool(x) for x in load(tmp_path / "out.csv")["predicted"]] == [True, False, True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("good film\nbad,film,x\n", "line 3: expected 1 fields as in the header, got 3"),
        ("good \xff film\n", "line 2: not UTF-8"),
    ],
)
def test_an_invalid_line_leaves_no_output(
    run: RunResult, line: str, message: str, tmp_path: Path, headwise: Headwise
) -> None:
    data = tmp_path / "new.csv"
    data.write_bytes(b"text\n" + line.encode("latin-1"))
    code, _, err = headwise("predict", run.run_dir, data, "--out", tmp_path / "out.csv")
    assert code == 2
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_predict_errors(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "new.csv", ("a", "b"), [("x", "y")])
    unfinished = tmp_path / "my run"
    unfinished.mkdir()
    (unfinished / "run.yaml").write_text("model: plain\n")
    for args, message in (
        ((tmp_path / "none", data, "--out", tmp_path / "o.csv"), "no finished run (no such directory)"),
        ((unfinished, data, "--out", tmp_path / "o.csv"), f"headwise train --resume --out '{unfinished}'"),
        ((run.run_dir, tmp_path / "none.csv", "--out", tmp_path / "o.csv"), "none.csv: no such file"),
        (
            (run.run_dir, data, "--out", tmp_path / "o.csv"),
            "for text pairs, set --text a --pair b, for one text --text",
        ),
        ((run.run_dir, data, "--text", "c", "--out", tmp_path / "o.csv"), "no column 'c'"),
        ((run.run_dir, data, "--text", "a", "--out", tmp_path / "o.xls"), "unknown format"),
        ((run.run_dir, data, "--text", "a", "--out", data), "the output is the input file"),
    ):
        code, _, err = headwise("predict", *args)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_labels_with_line_breaks_do_not_fit_in_tsv(tmp_path: Path) -> None:
    data = write(tmp_path / "new.csv", ("text",), [("a good film",)])
    new_columns = {"probability_very\ngood": pa.float64()}
    table = TableFormat.from_head(tmp_path / "out.tsv", read_head(data), new_columns)
    with (
        pytest.raises(UserError, match="TSV cannot store tabs or line breaks"),
        table.open_part(tmp_path / "part", is_first=True),
    ):
        pass


def test_printed_command_is_quoted(run: RunResult) -> None:
    text = format_result(RunResult(Path("my runs/first"), run.metrics))
    assert "headwise predict 'my runs/first' FILE --out LABELLED" in text
