"""How often and in which batches runs evaluate their model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import Trainer

from headwise.training import TextConfig, train
from headwise.training.core import checkpointing
from headwise.training.text.pipeline import EVAL_TOKENS, eval_batch_size


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each split that is predicted after training."""
    counts = []
    predict = Trainer.predict

    def predict_and_count(self: Any, rows: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(len(rows))
        return predict(self, rows, *args, **kwargs)

    monkeypatch.setattr(Trainer, "predict", predict_and_count)
    return counts


def test_scores_of_the_best_epoch_are_those_of_its_weights(
    reviews: Path, tmp_path: Path, predicted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, batch_size=16, learning_rate=0.03, epochs=3
    )
    run = train(config, tmp_path / "run")
    num_splits = len(run.metrics["metrics"])
    assert len(predicted) == num_splits - 1, "dev was evaluated after the best epoch"
    predicted.clear()
    monkeypatch.setattr(checkpointing, "MAX_KEPT_SCORES", 0)
    other = train(config, tmp_path / "other")
    assert len(predicted) == num_splits
    assert other.metrics["metrics"] == run.metrics["metrics"]
    assert other.metrics["decision"] == run.metrics["decision"]
    first, second = (x.run_dir / "predictions.parquet" for x in (run, other))
    assert first.read_bytes() == second.read_bytes()


def test_merged_adapters_are_evaluated(reviews: Path, bert: Path, tmp_path: Path, predicted: list[int]) -> None:
    pytest.importorskip("peft")
    config = TextConfig(data=(str(reviews),), model=str(bert), lora=True, batch_size=32, epochs=1)
    run = train(config, tmp_path / "run")
    assert len(predicted) == len(run.metrics["metrics"])


@pytest.mark.parametrize("hierarchy", [None, (50, 30)])
def test_eval_batches(hierarchy: tuple[int, int] | None) -> None:
    def num_rows(longest: int, *, on_gpu: bool = True, **options: Any) -> int:
        encoded = {"train": Dataset.from_dict({"length": [1, 2]}), "dev": Dataset.from_dict({"length": [3, longest]})}
        bundle: Any = SimpleNamespace(encoded=encoded, encoder=SimpleNamespace(hierarchy=hierarchy))
        return eval_batch_size(TextConfig(data=("x.csv",), batch_size=8, **options), bundle, on_gpu=on_gpu)

    assert num_rows(64, on_gpu=False) == num_rows(EVAL_TOKENS) == 4 * 8
    assert num_rows(512) == (EVAL_TOKENS // 512 if hierarchy is None else 4 * 8)
    assert num_rows(512, gradient_checkpointing=True) == 4 * 8
    assert num_rows(8) == (16 * 8 if hierarchy is None else 4 * 8), "not more rows than 16 batches of training"
    assert num_rows(64, batch_tokens=640) == num_rows(64, batch_tokens=640, on_gpu=False) == 10
