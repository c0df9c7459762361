"""Damaged run directories and models whose files do not belong together are one-line errors, found by fuzzing."""

import errno
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from headwise.errors import UserError
from headwise.studies.study import is_valid_metrics
from headwise.training import TextConfig, train
from headwise.training.core.checkpointing import report_broken_checkpoint
from headwise.training.core.pretrained import load_pretrained
from headwise.training.core.run_dir import read_metrics, write_manifest
from tests.training.conftest import Headwise, rows, write


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("damaged")
    data = write(directory / "reviews.csv", ("text", "label"), list(rows(60)))
    config = TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=1, batch_size=16)
    return train(config, directory / "run").run_dir


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy that a test can damage."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def check_one_line(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    assert code == 2, err
    *progress, error = err.splitlines()
    assert error.startswith("headwise: error: ")
    expected = ("learning rate ", "computing the baseline ", "the model is trained from scratch ")
    assert all(line.startswith(expected) for line in progress)
    for word in words:
        assert word in error


def increase_token_ids(directory: Path) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {word: 1000 + number for word, number in tokenizer["model"]["vocab"].items()}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    "values",
    [
        {"labels": {"a": 1}},
        {"labels": ["a"]},
        {"labels": [1, 2]},
        {"label_type": "x"},
        {"label_type": []},
        {"inputs": {"pair": None, "max_length": "a", "hierarchy": None}},
        {"inputs": {"pair": 3, "max_length": [], "hierarchy": 5}},
    ],
    ids=str,
)
def test_metrics_that_do_not_fit_the_model(
    values: dict[str, Any], run: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    edit_json(run / "metrics.json", **values)
    check_one_line(headwise("predict", run, reviews, "--out", tmp_path / "out.csv"), "metrics.json")


def test_metrics_that_are_no_object(run: Path) -> None:
    (run / "metrics.json").write_text("[1]")
    with pytest.raises(UserError, match=r"metrics\.json: not written by headwise, or damaged$"):
        read_metrics(run)


def test_training_with_a_tokenizer_of_another_model(
    bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    increase_token_ids(model)
    result = headwise("train", "--data", reviews, "--model", model, "--epochs", "1", "--out", tmp_path / "run")
    check_one_line(result, "its tokenizer does not fit its weights")


def test_a_tokenizer_that_panics(bert: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = shutil.copytree(bert, tmp_path / "model")
    model: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    model["continuing_subword_prefix"] = "########"  # longer than the second part of the merge
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": model}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_pretrained(PreTrainedTokenizerFast, directory)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "values",
    [
        {"baselines": {"test": 3}},
        {"baselines": {"test": {"tf-idf": {"accuracy": []}}}},
        {"standard_error": {"test": "a"}},
    ],
    ids=str,
)
def test_damaged_baselines_are_no_valid_metrics(values: dict[str, Any], run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert is_valid_metrics(metrics)
    assert not is_valid_metrics(metrics | values)


def test_nan_weights(run: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    weights = load_file(run / "model.safetensors")
    save_file({name: torch.full_like(x, torch.nan) for name, x in weights.items()}, run / "model.safetensors")
    check_one_line(headwise("predict", run, reviews, "--out", tmp_path / "out.csv"), "NaN or infinite")
    check_one_line(headwise("evaluate", run, "--data", reviews), "NaN or infinite")
    check_one_line(headwise("inspect", run, "--text", "a film", "--out", tmp_path / "page.html"), "NaN or infinite")


def test_a_tokenizer_of_another_model(run: Path, reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    """Its token ids are larger than the model's vocabulary."""
    increase_token_ids(run)
    check_one_line(headwise("predict", run, reviews, "--out", tmp_path / "out.csv"), str(run))
    check_one_line(headwise("inspect", run, "--text", "a film", "--out", tmp_path / "page.html"), str(run))


@pytest.mark.parametrize("name", ["encoder.layer.0.attention.self.query.weight", "embeddings.word_embeddings.weight"])
def test_missing_weights(name: str, bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    """They would be initialized at random, so that the page shows random attention."""
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    del weights[name]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    check_one_line(headwise("inspect", model, "--text", "a film", "--out", tmp_path / "page.html"), name)


def test_a_missing_pooler_is_not_an_error(bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    """Many encoders are saved without one, and inspection does not use it."""
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    weights = load_file(model / "model.safetensors")
    kept = {name: x for name, x in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})
    assert headwise("inspect", model, "--text", "a film", "--out", tmp_path / "page.html")[0] == 0


def change_config(model: Path) -> None:
    edit_json(model / "config.json", hidden_size="8")


def change_tokenizer(model: Path) -> None:
    edit_json(model / "tokenizer.json", post_processor={"type": "x"})


def change_special_token(model: Path) -> None:
    edit_json(model / "tokenizer_config.json", pad_token={"a": 1})


def change_max_length(model: Path) -> None:
    edit_json(model / "tokenizer_config.json", model_max_length="many")


def change_max_length_to_infinity(model: Path) -> None:
    edit_json(model / "tokenizer_config.json", model_max_length=-math.inf)


def change_weights(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


@pytest.mark.parametrize(
    "change",
    [
        change_config,
        change_tokenizer,
        change_special_token,
        change_max_length,
        change_max_length_to_infinity,
        change_weights,
    ],
)
def test_damaged_models(
    change: Callable[[Path], None], bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise
) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "model"))
    change(model)
    train_args = ("train", "--data", reviews, "--model", model, "--epochs", 1, "--out", tmp_path / "run")
    check_one_line(headwise(*train_args), str(model))
    check_one_line(headwise("inspect", model, "--text", "a film", "--out", tmp_path / "page.html"), str(model))


def test_predictions_of_a_damaged_parquet_file(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    data = tmp_path / "data.parquet"
    data.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    check_one_line(headwise("predict", run, data, "--out", tmp_path / "out.parquet"), str(data), "Parquet")


@pytest.mark.parametrize("history", [[["loss", 1.0]], [{"loss": "a"}], [{"loss": 1.0, "epoch": [1]}], 3], ids=str)
def test_logs_of_a_checkpoint_that_are_no_numbers(history: Any, run: Path, tmp_path: Path, headwise: Headwise) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("run.yaml", "checkpoints"):
        shutil.move(run / name, unfinished / name)
    (checkpoint,) = (unfinished / "checkpoints").glob("checkpoint-*")
    edit_json(checkpoint / "trainer_state.json", log_history=history)
    write_manifest(checkpoint)
    check_one_line(headwise("train", "--resume", "--quiet", "--out", unfinished), str(checkpoint), "cannot be resumed")


def test_infinite_gradients_in_a_log_are_null_in_metrics(run: Path, tmp_path: Path, headwise: Headwise) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("run.yaml", "checkpoints"):
        shutil.move(run / name, unfinished / name)
    (checkpoint,) = (unfinished / "checkpoints").glob("checkpoint-*")
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    history[0]["grad_norm"] = math.inf
    edit_json(checkpoint / "trainer_state.json", log_history=history)
    write_manifest(checkpoint)
    assert headwise("train", "--resume", "--quiet", "--out", unfinished)[0] == 0
    metrics = json.loads((unfinished / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert metrics["history"][0]["grad_norm"] is None


def test_invalid_arguments_of_the_operating_system_are_damaged_checkpoints() -> None:
    """torch seeks to positions that a damaged archive names, and the operating system refuses."""
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=0))
    with (
        pytest.raises(UserError, match="checkpoint-3: cannot be resumed"),
        report_broken_checkpoint(trainer, "checkpoint-3"),
    ):
        raise OSError(errno.EINVAL, "Invalid argument")
    with pytest.raises(OSError, match="No space left"), report_broken_checkpoint(trainer, "checkpoint-3"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", [10**400, "3"], ids=["huge", "text"])
def test_steps_that_are_no_steps_are_damaged_checkpoints(step: Any) -> None:
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=0))

    def resume() -> None:
        trainer.state.global_step = step  # from trainer_state.json
        trainer.state.global_step *= 1.0

    with pytest.raises(UserError, match="cannot be resumed"), report_broken_checkpoint(trainer, "checkpoint-3"):
        resume()
