"""Training of recommenders: the run directory, resuming, and rejected logs and options."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from headwise.models import HeadwiseForRecommendation
from headwise.training.recommendation.batches import ClickDataset
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.registry import load_config
from tests.training.conftest import Headwise

SMALL = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--history", 10, "--batch-size", 32, "--dropout", 0)


def test_run_dir_holds_model_metrics_predictions_and_card(run: Path, log: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert set(metrics["metrics"]) == {"dev", "test"}
    assert set(metrics["metrics"]["test"]) == {"auc", "mind_mrr", "ndcg@5", "ndcg@10"}
    baselines = metrics["baselines"]["test"]
    assert set(baselines) == {"popularity", "mean of clicked titles", "oracle"}
    oracle = json.loads((log / "truth.json").read_text())
    assert baselines["oracle"]["auc"] == oracle["oracle"]["test"]["auc"]
    assert baselines["popularity"]["auc"] == pytest.approx(
        oracle["popularity"]["test"]["auc"], abs=0.02
    )  # conftest.py adds two clicks
    assert metrics["metrics"]["test"]["auc"] > baselines["popularity"]["auc"]
    assert any("with only clicks" in note for note in metrics["notes"])
    assert any("have no history" in note for note in metrics["notes"])
    model = HeadwiseForRecommendation.from_pretrained(run)
    assert (model.config.titles.scheme, model.config.scheme, model.config.pooling) == ("none", "rpr", "recent")
    assert metrics["peak_memory"]["peak_mib"] > 0
    card = (run / "README.md").read_text()
    assert "| oracle |" in card
    assert str(log) not in card
    config = load_config(run / "run.yaml")
    assert isinstance(config, RecommendationConfig)
    assert config.causal
    rows = pq.read_table(run / "predictions.parquet").to_pandas()
    test = rows[rows["split"] == "test"]
    assert len(test) == 20
    assert np.nanmean(test["auc"]) == pytest.approx(metrics["metrics"]["test"]["auc"], abs=1e-6)


def test_resumed_run_gives_the_same_metrics(log: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--task", "mind", "--data", log, *SMALL, "--epochs", 3, "--out")
    assert headwise("train", *args, tmp_path / "uninterrupted")[0] == 0
    killed = Path(shutil.copytree(tmp_path / "uninterrupted", tmp_path / "killed"))
    for path in killed.iterdir():
        if path.is_file() and path.name != "run.yaml":
            path.unlink()
    newest = max((killed / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    shutil.rmtree(newest)
    code, out, err = headwise("train", "--task", "mind", "--resume", "--out", killed)
    assert code == 0, err
    assert "oracle: auc" in out
    assert "headwise predict" in out
    both = [
        json.loads((tmp_path / name / "metrics.json").read_text())["metrics"]["test"]
        for name in ("uninterrupted", "killed")
    ]
    assert both[0] == pytest.approx(both[1])


def test_hugging_face_encoder_encodes_titles(half_bert: Path, log: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--task", "mind", "--data", log, "--model", half_bert, "--title-length", 12, "--heads", 2, "--head-dim", 4)
    code, _, err = headwise("train", *args, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0, err
    notes = json.loads((tmp_path / "run" / "metrics.json").read_text())["notes"]
    assert any("words by bert, clicked news by distance-aware" in note for note in notes)
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert {x.dtype for x in weights.values()} == {torch.float32}, "the encoder was saved in float16"
    assert headwise("evaluate", tmp_path / "run")[0] == 0
    code, _, err = headwise("train", *args, "--vectors", "glove.txt", "--out", tmp_path / "other")
    assert (code, "--vectors applies to models trained from scratch" in err) == (2, True)
    code, _, err = headwise("train", *args[:-5], 99, "--out", tmp_path / "other")
    assert (code, "--title-length 99: this model reads at most 64 tokens" in err) == (2, True)


def test_help_lists_the_options_of_click_logs(capsys: pytest.CaptureFixture[str]) -> None:
    from headwise.cli import main

    assert main(["train", "--task", "mind", "--help"]) == 0
    stdout = capsys.readouterr().out
    assert "--news-scheme" in stdout
    assert "--hierarchy" not in stdout


def write_log(path: Path, **splits: list[str]) -> Path:
    """Write a log with these lines of behaviors.tsv per split, and three news."""
    for split, lines in splits.items():
        (path / split).mkdir(parents=True)
        news = "".join(f"N{i}\tc\tc\tsome title {i}\t\t\t[]\t[]\n" for i in range(1, 4))
        (path / split / "news.tsv").write_text(news)
        (path / split / "behaviors.tsv").write_text("".join(f"{line}\n" for line in lines))
    return path


VALID = ["1\tU1\tt\tN1\tN2-1 N3-0", "2\tU2\tt\t\tN1-1 N2-0"]


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": ["1\tU1\tt\tN9\tN2-1 N3-0"]}, r"line 1: column 'history': news 'N9' is in no news.tsv"),
        (
            {"train": [VALID[0], "2\tU1\tt\tN1\tN2-1 N9-0"]},
            r"line 2: column 'impressions': news 'N9' is in no news.tsv",
        ),
        ({"train": [VALID[0], "2\tU1\tN1\tN2-1"]}, r"behaviors.tsv, line 2: expected 5 fields .*, got 4"),
        ({"train": ["1\tU1\tt\tN1\tN2-1"]}, r"no impression has both a click and a non-click"),
        ({"train": ["1\tU1\tt\tN1\tN2 N3"]}, r"the candidates have no labels, such as N123-1, to train on"),
        ({"dev": VALID}, r"there is no train directory to train on; found: dev"),
        ({"train": VALID, "dev": ["1\tU1\tt\tN1\tN2 N3"]}, r"dev/behaviors.tsv: the candidates have no labels"),
    ],
    ids=["history", "candidate", "fields", "one-label", "labels", "train", "dev"],
)
def test_invalid_logs_are_reported_with_file_and_line(
    splits: dict[str, list[str]], message: str, tmp_path: Path, headwise: Headwise
) -> None:
    data = write_log(tmp_path / "log", **splits)
    code, _, err = headwise("train", "--task", "mind", "--data", data, *SMALL, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(message, err)
    assert not (tmp_path / "run").exists()


def test_duplicate_news_are_reported(tmp_path: Path, headwise: Headwise) -> None:
    data = write_log(tmp_path / "log", train=VALID)
    with (data / "train" / "news.tsv").open("a") as file:
        file.write("N1\tc\tc\tsome title 1\t\t\t[]\t[]\n")
    code, _, err = headwise("train", "--task", "mind", "--data", data, "--out", tmp_path / "run")
    assert code == 2
    assert re.search(r"news.tsv, line 4: news 'N1' is repeated, see .*news.tsv, line 1", err)


def test_impressions_with_only_one_label_are_skipped_and_counted(tmp_path: Path, headwise: Headwise) -> None:
    one_label = ["3\tU1\tt\tN1\tN2-1", "4\tU1\tt\tN1\tN2-0"]
    data = write_log(tmp_path / "log", train=[*VALID, *one_label], dev=[*VALID, *one_label])
    code, _, err = headwise("train", "--task", "mind", "--data", data, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    assert code == 0, err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "2 training impressions with only clicks (1) or only non-clicks (1) were skipped" in metrics["notes"]
    assert metrics["counts"]["dev"] == {"impressions": 4, "only_clicks": 1, "only_non_clicks": 1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--history", 0), "--history must be at least 1, got 0"),
        (("--dropout", 1), "--dropout must be at least 0 and below 1"),
        (("--guides", "mdg"), "guides"),
    ],
)
def test_invalid_options_are_rejected(
    args: tuple[object, ...], message: str, log: Path, tmp_path: Path, headwise: Headwise
) -> None:
    code, _, err = headwise("train", "--task", "mind", "--data", log, *args, "--out", tmp_path / "run")
    assert code == 2
    assert message in err
    code, _, err = headwise("train", "--task", "mind", "--out", tmp_path / "run")
    assert (code, "--data is required" in err) == (2, True)


def test_run_yaml_repeats_the_run(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    assert yaml.safe_load((run / "run.yaml").read_text())["news_scheme"] == "rpr"
    code, _, err = headwise("train", "--config", run / "run.yaml", "--out", tmp_path / "again")
    assert code == 0, err
    both = [json.loads((path / "metrics.json").read_text())["metrics"]["test"] for path in (run, tmp_path / "again")]
    assert both[0] == pytest.approx(both[1])


def test_killed_data_loader_worker_is_reported(
    log: Path, headwise: Headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_options = {"num_workers": 1, "multiprocessing_context": "fork"}
    monkeypatch.setattr("headwise.training.recommendation.trainer.WORKER_OPTIONS", worker_options)
    getitem = ClickDataset.__getitem__

    def kill_worker(self: ClickDataset, batch: Any) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return getitem(self, batch)

    monkeypatch.setattr(ClickDataset, "__getitem__", kill_worker)
    small = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--epochs", 1)
    code, _, err = headwise("train", "--task", "mind", "--data", log, *small, "--out", tmp_path / "run")
    assert code == 2
    assert "a data loading process died (DataLoader worker" in err


@pytest.mark.parametrize(("option", "value"), [("mapping", "exponent"), ("adjust", "late-add")])
def test_options_of_the_scheme_apply_to_words_and_clicks(
    option: str, value: str, log: Path, tmp_path: Path, headwise: Headwise
) -> None:
    args = ("--task", "mind", "--data", log, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    code, _, err = headwise("train", *args, "--scheme-options", f"{option}={value}")
    assert code == 0, err
    model = HeadwiseForRecommendation.from_pretrained(tmp_path / "run")
    assert model.config.titles.scheme_options == model.config.scheme_options == {option: value}
    schemes = [module for module in model.modules() if type(module).__name__ == "DistanceAware"]
    assert [getattr(scheme, option) for scheme in schemes] == [value, value]


def test_options_of_another_scheme_over_clicked_news(log: Path, tmp_path: Path, headwise: Headwise) -> None:
    schemes = ("--model", "distance-aware", "--scheme-options", "mapping=clip", "--news-scheme", "none")
    args = ("--task", "mind", "--data", log, *SMALL, "--epochs", 1, "--out", tmp_path / "run")
    code, _, err = headwise("train", *args, *schemes)
    assert code == 0, err
    config = HeadwiseForRecommendation.from_pretrained(tmp_path / "run").config
    assert (config.titles.scheme_options, config.scheme_options) == ({"mapping": "clip"}, None)


def test_scale_of_positions_is_that_of_the_words(log: Path, tmp_path: Path, headwise: Headwise) -> None:
    args = ("--task", "mind", "--data", log, *SMALL, "--epochs", 1, "--model", "plain", "--out", tmp_path / "run")
    assert headwise("train", *args)[0] == 0
    model: Any = HeadwiseForRecommendation.from_pretrained(tmp_path / "run")
    assert model.titles.encoder.embeddings.positions.scale == model.config.titles.position_scale < 0.5


def test_last_day_of_train_selects_the_epoch(log: Path, tmp_path: Path, headwise: Headwise) -> None:
    published = tmp_path / "published"
    for name in ("train", "dev"):
        shutil.copytree(log / name, published / name)
    behaviors = published / "train" / "behaviors.tsv"
    behaviors.write_text(
        "".join(line for line in behaviors.read_text().splitlines(keepends=True) if "\tt\t" not in line)
    )
    args = ("--task", "mind", "--data", published, *SMALL, "--epochs", 1, "--splits", "last-day")
    code, _, err = headwise("train", *args, "--out", tmp_path / "run")
    assert code == 0, err
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert "the last day of train; test is the published dev" in metrics["dataset"]
    assert set(metrics["metrics"]) == {"dev", "test"}
    code, out, err = headwise("evaluate", tmp_path / "run")
    assert code == 0, err
    assert f"{metrics['metrics']['test']['auc']:.4f}" in out
