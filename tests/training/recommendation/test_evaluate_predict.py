"""Evaluation of and ranking with finished runs on click logs."""

import gzip
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from headwise.errors import UserError
from headwise.tasks import mind
from headwise.tasks.metrics import clicks
from headwise.training import evaluate, predict
from tests.training.conftest import Headwise


def test_evaluate_repeats_the_metrics_of_the_run(run: Path, log: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    evaluation = evaluate(run)
    assert evaluation["metrics"] == pytest.approx(metrics["metrics"]["test"])
    assert evaluation["standard_error"] == pytest.approx(metrics["standard_error"]["test"])
    assert "--tune" not in evaluation["verdict"] + metrics["verdict"], "recommenders have no such option"
    assert {name: one["auc"] for name, one in evaluation["baselines"].items()} == pytest.approx(
        {name: one["auc"] for name, one in metrics["baselines"]["test"].items()}
    )
    dev = evaluate(run, log / "dev")
    assert dev["dataset"] == "dev, dev"
    assert dev["metrics"] == pytest.approx(metrics["metrics"]["dev"])
    assert set(dev["baselines"]) == {"mean of clicked titles"}  # popularity needs the training split
    with pytest.raises(UserError, match="--text does not apply to the run"):
        evaluate(run, text="title")


@pytest.mark.parametrize(
    ("name", "splits", "old", "new"),
    [("behaviors.tsv", ("test",), "-0", "-1"), ("news.tsv", ("train", "dev", "test"), " ", " old ")],
    ids=["label", "title"],
)
def test_evaluate_rejects_a_log_that_changed_since_training(
    name: str, splits: tuple[str, ...], old: str, new: str, run: Path, log: Path, tmp_path: Path
) -> None:
    copied_log, copied_run = tmp_path / "log", tmp_path / "run"
    shutil.copytree(log, copied_log)
    shutil.copytree(run, copied_run)
    config = copied_run / "run.yaml"
    config.write_text(config.read_text().replace(str(log), str(copied_log)))
    metrics = json.loads((run / "metrics.json").read_text())
    assert evaluate(copied_run)["metrics"] == pytest.approx(metrics["metrics"]["test"])
    for split in splits:
        file = copied_log / split / name
        file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=rf"the data has changed since training \({copied_log}\).* --data"):
        evaluate(copied_run)
    assert evaluate(copied_run, copied_log)["rows"] == 20


def test_zip_has_the_format_of_the_leaderboard(run: Path, log: Path, tmp_path: Path) -> None:
    assert predict(run, log, tmp_path / "prediction.zip") == 0
    with zipfile.ZipFile(tmp_path / "prediction.zip") as archive:
        assert archive.namelist() == ["prediction.txt"]
        lines = archive.read("prediction.txt").decode().splitlines()
    split = mind.read(log, cache=tmp_path).splits["test"]
    assert len(lines) == len(split)
    scores, labels, offsets = [], [], [0]
    for line, row in zip(lines, split.rows.data, strict=True):
        assert re.fullmatch(rf"{row['impression']} \[\d+(,\d+)*\]", line)
        ranks = json.loads(line.partition(" ")[2])
        assert sorted(ranks) == list(range(1, len(row["candidates"]) + 1))
        scores += [-rank for rank in ranks]
        labels += row["clicked"]
        offsets.append(len(labels))
    metrics = clicks.compute(np.array(scores), np.array(labels), offsets)
    assert metrics["auc"] == pytest.approx(evaluate(run)["metrics"]["auc"])


def test_tsv_ranks_a_log_without_labels(run: Path, log: Path, tmp_path: Path) -> None:
    unlabelled = tmp_path / "MINDlarge_test"
    shutil.copytree(log / "test", unlabelled)
    text = (unlabelled / "behaviors.tsv").read_text()
    (unlabelled / "behaviors.tsv").write_text(re.sub(r"-[01]\b", "", text))
    predict(run, unlabelled, tmp_path / "ranked.tsv.gz")
    header, *lines = gzip.decompress((tmp_path / "ranked.tsv.gz").read_bytes()).decode().splitlines()
    assert header.split("\t") == ["impression", "rank", "news", "score"]
    first = text.splitlines()[0].split("\t")
    ranked = [line.split("\t") for line in lines if line.startswith(f"{first[0]}\t")]
    assert [int(rank) for _, rank, *_ in ranked] == list(range(1, len(ranked) + 1))
    assert {news for *_, news, _ in ranked} == {name[:-2] for name in first[4].split()}
    scores = [float(score) for *_, score in ranked]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(UserError, match=r"expected \.zip for MIND's leaderboard, or \.tsv"):
        predict(run, unlabelled, tmp_path / "ranked.csv")
    with pytest.raises(UserError, match="no split has labels"):
        evaluate(run, unlabelled)


def test_parts_change_neither_metrics_nor_ranks(run: Path, log: Path, tmp_path: Path) -> None:
    whole, parts = evaluate(run), evaluate(run, out=tmp_path / "metrics.json", part_rows=7)
    for key in ("metrics", "standard_error", "counts"):
        assert parts[key] == pytest.approx(whole[key])
    assert parts["baselines"].keys() == whole["baselines"].keys()
    for name, metrics in whole["baselines"].items():
        assert parts["baselines"][name] == pytest.approx(metrics)
    for name in ("ranked.tsv", "ranked.tsv.gz", "prediction.zip"):
        outs = tmp_path / f"whole-{name}", tmp_path / f"parts-{name}"
        predict(run, log, outs[0])
        predict(run, log, outs[1], part_rows=7)
        whole_bytes, part_bytes = map(read_output, outs)
        assert whole_bytes == part_bytes
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz", ".gz", ".tsv", ".tsv", ".zip", ".zip"]


def read_output(path: Path) -> bytes:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            return archive.read("prediction.txt")
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_title_encoder_can_be_inspected(run: Path, headwise: Headwise, tmp_path: Path) -> None:
    code, _, err = headwise("inspect", run, "--text", "team plan", "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert '"team"' in (tmp_path / "page.html").read_text(encoding="utf-8")
