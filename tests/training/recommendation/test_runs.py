"""A recommender from a click log to a ranked one, by the command line."""

import gzip
import json
import os
import re
import shutil
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from headwise.errors import UserError
from headwise.models import HeadwiseForRecommendation
from headwise.tasks import mind
from headwise.tasks.metrics import clicks
from headwise.training import evaluate, predict, train
from headwise.training.recommendation.clicks import Clicks
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.registry import load_config
from tests.training.conftest import Headwise

SMALL = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--history", 10, "--batch-size", 32, "--dropout", 0)


@pytest.fixture(scope="module")
def trained(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = RecommendationConfig(
        task="mind",
        data=(str(log),),
        model="none",
        news_scheme="rpr",
        pooling="recent",
        causal=True,
        heads=2,
        head_dim=4,
        word_dim=8,
        history=10,
        batch_size=32,
        epochs=4,
        learning_rate=1e-2,
        dropout=0.0,
    )
    with pytest.MonkeyPatch.context() as patched:  # before the fixture that does so for each test
        patched.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
        train(settings, out)
    return out


def test_the_folder_holds_what_was_learnt(trained: Path, log: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    assert set(metrics["metrics"]) == {"dev", "test"}
    assert set(metrics["metrics"]["test"]) == {"auc", "mind_mrr", "ndcg@5", "ndcg@10"}
    beside = metrics["baselines"]["test"]
    assert set(beside) == {"popularity", "mean of clicked titles", "oracle"}
    truth = json.loads((log / "truth.json").read_text())
    assert beside["oracle"]["auc"] == truth["oracle"]["test"]["auc"]
    assert beside["popularity"]["auc"] == pytest.approx(truth["popularity"]["test"]["auc"], abs=0.02)  # 2 clicks more
    assert metrics["metrics"]["test"]["auc"] > beside["popularity"]["auc"]
    assert any("of only clicks" in note for note in metrics["notes"])
    assert any("have no history" in note for note in metrics["notes"])
    model = HeadwiseForRecommendation.from_pretrained(trained)
    assert (model.config.titles.scheme, model.config.scheme, model.config.pooling) == ("none", "rpr", "recent")
    card = (trained / "README.md").read_text()
    assert "| oracle |" in card
    assert str(log) not in card
    settings = load_config(trained / "run.yaml")
    assert isinstance(settings, RecommendationConfig)
    assert settings.causal
    rows = pq.read_table(trained / "predictions.parquet").to_pandas()
    test = rows[rows["split"] == "test"]
    assert len(test) == 20
    assert np.nanmean(test["auc"]) == pytest.approx(metrics["metrics"]["test"]["auc"], abs=1e-6)


def test_evaluate_gives_the_same_figures(trained: Path, log: Path) -> None:
    metrics = json.loads((trained / "metrics.json").read_text())
    found = evaluate(trained)
    assert found["metrics"] == pytest.approx(metrics["metrics"]["test"])
    assert found["standard_error"] == pytest.approx(metrics["standard_error"]["test"])
    assert {name: one["auc"] for name, one in found["baselines"].items()} == pytest.approx(
        {name: one["auc"] for name, one in metrics["baselines"]["test"].items()}
    )
    dev = evaluate(trained, log / "dev")
    assert dev["dataset"] == "dev, dev"
    assert dev["figures"] == pytest.approx(metrics["metrics"]["dev"])
    assert set(dev["beside"]) == {"mean of clicked titles"}  # of the log's train nothing is known there
    with pytest.raises(UserError, match="--text does not fit the run"):
        evaluate(trained, text="title")


def test_the_leaderboard_can_read_a_prediction(trained: Path, log: Path, tmp_path: Path) -> None:
    assert predict(trained, log, tmp_path / "prediction.zip") == 0
    with zipfile.ZipFile(tmp_path / "prediction.zip") as archive:
        assert archive.namelist() == ["prediction.txt"]
        lines = archive.read("prediction.txt").decode().splitlines()
    split = mind.read(log, cache=tmp_path).splits["test"]
    assert len(lines) == len(split)
    values, found, offsets = [], [], [0]
    for line, row in zip(lines, split.rows.data, strict=True):
        assert re.fullmatch(rf"{row['impression']} \[\d+(,\d+)*\]", line)
        ranks = json.loads(line.partition(" ")[2])
        assert sorted(ranks) == list(range(1, len(row["candidates"]) + 1))
        values += [-rank for rank in ranks]
        found += row["clicked"]
        offsets.append(len(found))
    judged = clicks.compute(np.array(values), np.array(found), offsets)
    assert judged["auc"] == pytest.approx(evaluate(trained)["metrics"]["auc"])


def test_ranked_news_as_a_table_of_a_log_without_labels(trained: Path, log: Path, tmp_path: Path) -> None:
    bare = tmp_path / "MINDlarge_test"
    shutil.copytree(log / "test", bare)
    text = (bare / "behaviors.tsv").read_text()
    (bare / "behaviors.tsv").write_text(re.sub(r"-[01]\b", "", text))
    predict(trained, bare, tmp_path / "ranked.tsv.gz")
    header, *lines = gzip.decompress((tmp_path / "ranked.tsv.gz").read_bytes()).decode().splitlines()
    assert header.split("\t") == ["impression", "rank", "news", "score"]
    first = text.splitlines()[0].split("\t")
    ranked = [line.split("\t") for line in lines if line.startswith(f"{first[0]}\t")]
    assert [int(rank) for _, rank, *_ in ranked] == list(range(1, len(ranked) + 1))
    assert {news for *_, news, _ in ranked} == {name[:-2] for name in first[4].split()}
    scores = [float(score) for *_, score in ranked]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(UserError, match=r"\.zip for MIND's leaderboard, or \.tsv"):
        predict(trained, bare, tmp_path / "ranked.csv")
    with pytest.raises(UserError, match="no split tells what was clicked"):
        evaluate(trained, bare)


def test_a_killed_run_goes_on(log: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--task", "mind", "--data", log, *SMALL, "--epochs", 3, "--out")
    assert headwise("train", *args, tmp_path / "whole")[0] == 0
    assert headwise("train", *args, tmp_path / "killed")[0] == 0
    killed = tmp_path / "killed"
    for path in killed.iterdir():
        if path.is_file() and path.name != "run.yaml":
            path.unlink()
    newest = max((killed / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(newest)
    code, out, err = headwise("train", "--task", "mind", "--resume", "--out", killed)
    assert code == 0, err
    assert "beside oracle: auc" in out
    assert "headwise predict" in out
    both = [
        json.loads((tmp_path / name / "metrics.json").read_text())["metrics"]["test"] for name in ("whole", "killed")
    ]
    assert both[0] == pytest.approx(both[1])


def test_a_hugging_face_encoder_reads_titles(half_bert: Path, log: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--task", "mind", "--data", log, "--model", half_bert, "--title-length", 12, "--heads", 2, "--head-dim", 4)
    code, _, err = headwise("train", *args, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0, err
    assert "words by bert, clicked news by distance-aware" in err
    learnt = load_file(tmp_path / "run" / "model.safetensors")
    assert {x.dtype for x in learnt.values()} == {torch.float32}, "however it was saved"
    assert headwise("evaluate", tmp_path / "run")[0] == 0
    code, _, err = headwise("train", *args, "--vectors", "glove.txt", "--out", tmp_path / "other")
    assert (code, "--vectors are for words" in err) == (2, True)
    code, _, err = headwise("train", *args[:-5], 99, "--out", tmp_path / "other")
    assert (code, "--title-length 99: this model reads at most 64 tokens" in err) == (2, True)


def test_help_tells_what_a_click_log_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    from headwise.cli import main

    with pytest.raises(SystemExit):
        main(["train", "--task", "mind", "--help"])
    told = capsys.readouterr().out
    assert "--news-scheme" in told
    assert "--guides" not in told


def written(path: Path, **splits: list[str]) -> Path:
    """A log whose splits have these behaviours and three news."""
    for split, lines in splits.items():
        (path / split).mkdir(parents=True)
        news = "".join(f"N{i}\tc\tc\tsome title {i}\t\t\t[]\t[]\n" for i in range(1, 4))
        (path / split / "news.tsv").write_text(news)
        (path / split / "behaviors.tsv").write_text("".join(f"{line}\n" for line in lines))
    return path


GOOD = ["1\tU1\tt\tN1\tN2-1 N3-0", "2\tU2\tt\t\tN1-1 N2-0"]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": ["1\tU1\tt\tN9\tN2-1 N3-0"]}, r"line 1: column 'history': news 'N9' is in no news.tsv"),
        ({"train": [GOOD[0], "2\tU1\tt\tN1\tN2-1 N9-0"]}, r"line 2: column 'impressions': news 'N9' is in no news.tsv"),
        ({"train": [GOOD[0], "2\tU1\tN1\tN2-1"]}, r"behaviors.tsv, line 2: 4 fields, expected 5"),
        ({"train": ["1\tU1\tt\tN1\tN2-1"]}, r"no impression has both a click and a non-click"),
        ({"train": ["1\tU1\tt\tN1\tN2 N3"]}, r"its candidates have no labels, such as N123-1, to learn from"),
        ({"dev": GOOD}, r"there is no train folder to learn from; there: dev"),
        ({"train": GOOD, "dev": ["1\tU1\tt\tN1\tN2 N3"]}, r"dev/behaviors.tsv: its candidates have no labels"),
    ],
    ids=["history", "candidate", "fields", "one-label_type", "labels", "train", "dev"],
)
def test_bad_logs_are_told_in_a_line(
    splits: dict[str, list[str]], message: str, tmp_path: Path, headwise: Headwise
) -> None:
    data = written(tmp_path / "log", **splits)
    code, _, err = headwise("train", "--task", "mind", "--data", data, *SMALL, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(message, err)
    assert not (tmp_path / "run").exists()


def test_a_news_twice_is_told(tmp_path: Path, headwise: Headwise) -> None:
    data = written(tmp_path / "log", train=GOOD)
    with (data / "train" / "news.tsv").open("a") as file:
        file.write("N1\tc\tc\tsome title 1\t\t\t[]\t[]\n")
    code, _, err = headwise("train", "--task", "mind", "--data", data, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(r"news.tsv, line 4: news 'N1' stands in .*news.tsv, line 1 too", err)


def test_odd_impressions_are_skipped_and_counted(tmp_path: Path, headwise: Headwise) -> None:
    odd = ["3\tU1\tt\tN1\tN2-1", "4\tU1\tt\tN1\tN2-0"]
    data = written(tmp_path / "log", train=[*GOOD, *odd], dev=[*GOOD, *odd])
    code, _, err = headwise("train", "--task", "mind", "--data", data, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0, err
    assert "2 training impressions of only clicks (1) or only non-clicks (1) were skipped" in err
    counts = json.loads((tmp_path / "run" / "metrics.json").read_text())["counts"]["dev"]
    assert counts == {"impressions": 4, "only_clicks": 1, "only_non_clicks": 1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--history", 0), "--history must be at least 1, got 0"),
        (("--dropout", 1), "--dropout must be at least 0 and below 1"),
        (("--guides", "mdg"), "guides"),
    ],
)
def test_settings_that_are_not_possible(
    args: tuple[object, ...], message: str, log: Path, tmp_path: Path, headwise: Headwise
) -> None:
    code, _, err = headwise("train", "--task", "mind", "--data", log, *args, "--out", tmp_path / "run")
    assert code == 2
    assert message in err
    code, _, err = headwise("train", "--task", "mind", "--out", tmp_path / "run")
    assert (code, "--data FOLDER is missing" in err) == (2, True)


def test_run_yaml_does_the_run_again(trained: Path, tmp_path: Path, headwise: Headwise) -> None:
    assert yaml.safe_load((trained / "run.yaml").read_text())["news_scheme"] == "rpr"
    code, _, err = headwise("train", "--config", trained / "run.yaml", "--out", tmp_path / "again")
    assert code == 0, err
    both = [
        json.loads((path / "metrics.json").read_text())["metrics"]["test"] for path in (trained, tmp_path / "again")
    ]
    assert both[0] == pytest.approx(both[1])


def test_how_titles_are_read_can_be_looked_into(trained: Path, headwise: Headwise, tmp_path: Path) -> None:
    code, _, err = headwise("inspect", trained, "--text", "team plan", "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert '"team"' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_dead_process_that_makes_batches_is_told(
    log: Path, headwise: Headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = {"num_workers": 1, "multiprocessing_context": "fork"}
    monkeypatch.setattr("headwise.training.recommendation.trainer.BESIDE", beside)
    made = Clicks.__getitem__

    def dying(self: Clicks, batch: Any) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return made(self, batch)

    monkeypatch.setattr(Clicks, "__getitem__", dying)
    small = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--epochs", 1)
    code, _, err = headwise("train", "--task", "mind", "--data", log, *small, "--out", tmp_path / "run")
    assert code == 2
    assert "a process that makes batches died (DataLoader worker" in err
