"""Processes that share a run: any number of them, whole models or parts of one, and one that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

import headwise
from headwise.models import build_tokenizer
from headwise.training import TextModel
from headwise.training.core.run_dir import last_checkpoint
from tests.robustness.launcher import Launcher
from tests.training.conftest import BAD, GOOD, OTHERS, rows, write

CREWS = [(2, False), *(pytest.param(*crew, marks=pytest.mark.long) for crew in ((4, False), (2, True)))]
SMALL = ("--heads", "2", "--head-dim", "8", "--word-dim", "16", "--batch-size", "16", "--dropout", "0")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 137 training rows no batch is even; 17 of dev, and 17 of test, are no multiple of processes either."""
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(171)))


@pytest.fixture(scope="module")
def alone(launcher: Launcher, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "run"
    assert launcher.run("train", "--data", data, "--out", out, "--epochs", 2, *SMALL) == 0, launcher.said()
    return out


def predictions(run: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(run / "predictions.parquet").to_pydict()
    return found


@pytest.mark.long
@pytest.mark.parametrize(("processes", "sharded"), CREWS, ids=["two", "four", "two-by-FSDP"])
def test_they_do_the_work_of_one(
    launcher: Launcher, data: Path, alone: Path, tmp_path: Path, processes: int, sharded: bool
) -> None:
    out = tmp_path / "run"
    arguments = ("train", "--data", data, "--out", out, "--epochs", 2, *SMALL)
    assert launcher.run(*arguments, processes=processes, sharded=sharded) == 0, launcher.said()
    assert launcher.said().count("train/dev/test 137/17/17") == 1, "one process speaks"
    expected, found = predictions(alone), predictions(out)
    assert found["split"] == ["dev"] * 17 + ["test"] * 17, "every row is judged once"
    assert found["row"] == expected["row"]
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-4)
    whole, parts = (AutoModelForSequenceClassification.from_pretrained(run) for run in (alone, out))
    for name, value in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], value, atol=1e-4, err_msg=name)
    assert len(TextModel.load(out).scores({"text": ["a good film"]})) == 1
    if sharded:
        kept = last_checkpoint(out)
        assert kept is not None
        assert Path(kept, "pytorch_model_fsdp_0").is_dir(), "it was FSDP"
        (out / "metrics.json").unlink()
        assert launcher.run("train", "--resume", "--out", out, processes=2, sharded=True) == 0, launcher.said()
        np.testing.assert_allclose(predictions(out)["scores"], found["scores"], atol=1e-5)


def test_they_share_evaluation_and_prediction(launcher: Launcher, data: Path, alone: Path, tmp_path: Path) -> None:
    """Every process scores half of the rows; one writes and prints what one process alone does."""
    results = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        out.mkdir()
        assert launcher.run("evaluate", alone, "--out", out / "metrics.json", processes=processes) == 0, launcher.said()
        assert launcher.said().count("accuracy") == launcher.said().count("baseline") + 1, "one process prints"
        arguments = ("predict", alone, data, "--out", out / "labelled.csv")
        assert launcher.run(*arguments, processes=processes) == 0, launcher.said()
        assert launcher.said().count("Predictions are in") == 1
        metrics = json.loads((out / "metrics.json").read_text(), parse_float=lambda digits: round(float(digits), 6))
        results[processes] = [metrics, (out / "labelled.csv").read_text()]
        assert sorted(path.name for path in out.iterdir()) == ["labelled.csv", "metrics.json"]
    assert results[1] == results[2]


def test_they_adapt_a_model_as_one_does(launcher: Launcher, data: Path, tmp_path: Path) -> None:
    """All losses are those of one process, up to the order of summation, whatever share of a batch is masked."""
    encoder = write_encoder(tmp_path / "encoder", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = ("--steps", 6, "--save-steps", 3, "--batch-size", 5, "--max-length", 16, "--learning-rate", 0.01)
    metrics, weights = {}, {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        arguments = ("adapt", encoder, "--data", data, "--out", out, *options, "--report-to", "none")
        assert launcher.run(*arguments, processes=processes) == 0, launcher.said()
        assert launcher.said().count("dev: loss") == 1, "one process speaks"
        metrics[processes] = json.loads((out / "metrics.json").read_text())
        weights[processes] = AutoModelForMaskedLM.from_pretrained(out).state_dict()
    alone, both = metrics[1], metrics[2]
    for name in ("before", "after"):
        assert both["metrics"][name]["loss"] == pytest.approx(alone["metrics"][name]["loss"], abs=1e-5), name
    losses = [[log[key] for log in x["history"] for key in ("loss", "eval_loss") if key in log] for x in (alone, both)]
    assert len(losses[0]) > 3
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-4)
    for name, value in weights[1].items():
        np.testing.assert_allclose(weights[2][name], value, atol=1e-4, err_msg=name)


def write_encoder(directory: Path, **config: Any) -> Path:
    """Save a small BERT whose tokenizer has a mask token."""
    tokenizer = build_tokenizer([" ".join((*GOOD, *BAD, *OTHERS))], framed=True, max_tokens=64)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    tokenizer.save_pretrained(directory)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    options = {"max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id, "intermediate_size": 32} | config
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes, **options)).save_pretrained(directory)
    return directory


@pytest.mark.long
def test_a_process_that_dies_is_reported_and_not_waited_for(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    environment = os.environ | {
        "PYTHONPATH": str(Path(headwise.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "headwise"]
    arguments = [
        "train",
        "--data",
        str(data),
        "--out",
        str(out),
        "--epochs",
        "400",
        "--early-stopping-patience",
        "400",
        *SMALL,
    ]
    with subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.PIPE, text=True) as process:
        while last_checkpoint(out) is None:
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        _, said = process.communicate()
    assert process.returncode != 0
    assert "SIGKILL" in said, "it says who died, and how"
    assert last_checkpoint(out) is not None, "there is something to go on with"


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
