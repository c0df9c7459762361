"""Data files in the command line: what is in the data, bad rows, delimiters, rankings and inputs of predictions."""

import csv
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.errors import UserError
from headwise.training import TextConfig, evaluate, predict, train
from headwise.training.registry import load_config
from tests.tasks.files import write_file
from tests.tasks.test_load_ranking import SPLITS, relevance, write_beir
from tests.training.conftest import Headwise, rows

SMALL = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--epochs", 1)


def write_semicolons(path: Path, bad: bool = False) -> Path:
    """Write 80 reviews with semicolons, a misspelled label and, if wanted, two rows without a text or label."""
    lines = [f"{text};{label}" for text, label in rows(80)]
    lines[3] = lines[3].replace("positive", "postive")
    if bad:
        lines[10], lines[20] = ";positive", "a film;"
    path.write_text("\n".join(["review;label", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("run")
    data = write_semicolons(directory / "reviews.csv")
    config = TextConfig(data=(str(data),), heads=2, head_dim=4, word_dim=8, epochs=1)
    return train(config, directory / "run").run_dir


def test_train_describes_the_data(tmp_path: Path, headwise: Headwise) -> None:
    data, out = write_semicolons(tmp_path / "reviews.csv", bad=True), tmp_path / "run"
    code, _, errors = headwise("train", "--data", data, "--out", out, *SMALL, "--max-length", 8)
    assert code == 2
    assert (
        f"{data}: 2 of 80 rows are invalid: line 12 (column 'review': empty text), line 22 (column 'label': no label); "
        "correct the rows, or skip them with --skip-bad-rows"
    ) in errors
    code, _, errors = headwise("train", "--data", data, "--skip-bad-rows", "--out", out, *SMALL, "--max-length", 8)
    assert code == 0
    assert f"skipped: {data}: 2 of 80 rows are invalid: line 12" in errors
    assert "label 'postive' (1) is similar to 'positive' (39): a misspelling?" in errors
    assert "labels: positive 39, negative 38, postive 1" in errors
    assert "train/dev/test 62/8/8: split 80/10/10" in errors
    assert "lengths: median " in errors
    notes = json.loads((out / "metrics.json").read_text())["notes"]
    (note,) = [note for note in notes if note.startswith("truncated to 8 tokens (--max-length): ")]
    num_truncated = int(note.split(": ")[1].split()[0])
    assert note.endswith(f"the limit is the {1 - num_truncated / 62:.1%} quantile of train")
    assert headwise("evaluate", out)[0] == 0, "run.yaml contains the options"
    other = tmp_path / "other.csv"
    other.write_text("review;label\na good film;positive\na bad film;negative\n")
    code, _, errors = headwise("evaluate", out, "--data", other)
    assert code == 0, errors
    assert "skipped" not in errors, "the training rows that were skipped are not reported again"
    assert load_config(out / "run.yaml").skip_bad_rows  # type: ignore[attr-defined]


def test_evaluate_and_predict_have_the_options(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    data = tmp_path / "other.csv"
    data.write_text("review~label\na good film, really; yes~positive\n~negative\na bad film~negative\n")
    with pytest.raises(UserError, match="if the columns are not separated by commas, set --delimiter"):
        predict(run, data, tmp_path / "out.csv")
    code, _, errors = headwise("evaluate", run, "--data", data, "--delimiter", "~")
    assert code == 2
    assert "other.csv, line 3: column 'review': empty text; correct the row, or skip it with --skip-bad-rows" in errors
    assert headwise("evaluate", run, "--data", data, "--delimiter", "~", "--skip-bad-rows")[0] == 0
    assert evaluate(run, data, delimiter="~", skip_bad_rows=True)["rows"] == 2
    assert headwise("predict", run, data, "--delimiter", "~", "--out", tmp_path / "out.csv")[0] == 0
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["review"] for row in written] == ["a good film, really; yes", "", "a bad film"]
    assert [bool(row["predicted"]) for row in written] == [True, False, True]


def test_options_of_own_data_do_not_apply_to_built_in_tasks(tmp_path: Path) -> None:
    for option in ({"skip_bad_rows": True}, {"delimiter": ";"}, {"queries": ("a.csv",)}):
        with pytest.raises(UserError, match="is for your own data; --task sst2 defines the layout of --data"):
            TextConfig(task="sst2", **option)


def test_a_ranking_of_own_files(tmp_path: Path, headwise: Headwise) -> None:
    data = write_beir(tmp_path, SPLITS)
    code, output, errors = headwise(
        "train", "--data", data, "--label-type", "ranking", "--out", tmp_path / "run", *SMALL
    )
    assert code == 0, errors
    assert "baseline BM25: mrr 1.0000" in output
    assert "labels: other 204, relevant 40" in errors
    _, own, _ = headwise("evaluate", tmp_path / "run")
    code, other, errors = headwise("evaluate", tmp_path / "run", "--data", data)
    assert code == 0, errors
    assert other.splitlines()[1:] == own.splitlines()[1:], "the directory's test split is the run's"
    shutil.rmtree(data / "qrels")
    write_file(data / "relevance.csv", relevance(range(6)))
    code, other, errors = headwise("evaluate", tmp_path / "run", "--data", data)
    assert code == 0, errors
    assert other.startswith(f"{data.name} (120 rows)\n")
    assert "baseline BM25: mrr" in other
    code, _, errors = headwise("evaluate", tmp_path / "run", "--data", data, "--text", "text")
    assert (code, "--text is not for rankings" in errors) == (2, True)


def test_a_ranking_of_single_files(tmp_path: Path, headwise: Headwise) -> None:
    data = write_beir(tmp_path, SPLITS)
    options = ("--data", data, "--label-type", "ranking", "--out", tmp_path / "run", *SMALL)
    _, output, _ = headwise("train", *options)
    files = ("--queries", data / "queries.jsonl", "--documents", data / "corpus.jsonl", "--relevance")
    relevance_files = [data / "qrels" / f"{split}.tsv" for split in SPLITS]
    code, same_output, _ = headwise("train", *files, *relevance_files, "--out", tmp_path / "other", *SMALL)
    assert code == 0
    assert same_output.splitlines()[:4] == output.splitlines()[:4], "the same rows"
    code, _, errors = headwise("train", "--queries", data / "queries.jsonl", "--out", tmp_path / "none")
    assert (code, "--documents and --relevance are required" in errors) == (2, True)


def write_parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table({"review": ["a film", "b"], **columns}), path)
    return path


def test_unusual_columns_are_copied_or_refused(run: Path, tmp_path: Path) -> None:
    maps = pa.array([[("a", 1)], [("a", 2), ("b", 3)]], pa.map_(pa.string(), pa.int64()))
    data, out = write_parquet(tmp_path / "a.parquet", other=maps), tmp_path / "out.parquet"
    predict(run, data, out)
    assert pq.read_table(out)["other"].to_pylist() == maps.to_pylist()
    with pytest.raises(
        UserError, match=r"a\.parquet, row 1: column 'other': expected a text, got \[\('a', 1\)\]; name"
    ):
        predict(run, data, out, text="other", force=True)
    write_parquet(data, other=pa.array([0, 10**15], pa.timestamp("ms")))
    with pytest.raises(UserError, match=r"row 2: column 'other': the timestamp\[ms\] cannot be read"):
        predict(run, data, out, force=True)
    (tmp_path / "a.jsonl").write_text('{"review": "a film", "other": ' + "1" * 400 + "}\n")
    with pytest.raises(UserError, match=r"--out .*out\.parquet: rows have different types .*use JSON Lines instead"):
        predict(run, tmp_path / "a.jsonl", out, force=True)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UserError, match="is a pipe, socket or device"):
        predict(run, tmp_path / "pipe.csv", tmp_path / "out.csv")


def test_a_run_yaml_that_is_nested_too_deeply_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("guides: " + "[" * 100_000)
    with pytest.raises(UserError, match=r"run\.yaml: nested more than 100 levels deep"):
        load_config(tmp_path / "run.yaml")
    (tmp_path / "run.yaml").unlink()
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(UserError, match=r"run\.yaml: not a regular file"):
        load_config(tmp_path / "run.yaml")
