"""Runs of a study tokenize the same rows once, and have the results of runs that tokenize their own."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headwise.training import TextConfig, train
from headwise.training.core.run_settings import change_settings
from headwise.training.text.encoding import TextEncoder


@pytest.fixture
def encoded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each batch that is tokenized."""
    counts = []
    encode = TextEncoder.encode

    def encode_and_count(self: TextEncoder, rows: Any) -> Any:
        counts.append(len(rows["text"]))
        return encode(self, rows)

    monkeypatch.setattr(TextEncoder, "encode", encode_and_count)
    return counts


def test_same_rows_are_tokenized_once(reviews: Path, bert: Path, tmp_path: Path, encoded_rows: list[int]) -> None:
    config = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, batch_size=32)
    own = train(config, tmp_path / "own")
    num_rows = sum(encoded_rows)
    tokens, runs = tmp_path / "tokens", []
    for name in ("first", "second"):
        encoded_rows.clear()
        with change_settings(token_dir=tokens):
            runs.append((train(config, tmp_path / name), sum(encoded_rows)))
    assert num_rows > 160, "all rows, and a few again as an example"
    assert [count for _, count in runs] == [num_rows, num_rows - 160]
    for run, _ in runs:
        assert run.metrics["metrics"] == own.metrics["metrics"]
        assert run.metrics["notes"] == own.metrics["notes"]
        for name in ("predictions.parquet", "model.safetensors", "tokenizer.json"):
            assert (run.run_dir / name).read_bytes() == (own.run_dir / name).read_bytes(), name


@pytest.mark.parametrize("options", [{"max_length": 6}, {"long_text": "head-tail", "max_length": 6}, {"seed": 1}])
def test_other_tokens_are_not_shared(
    reviews: Path, tmp_path: Path, encoded_rows: list[int], options: dict[str, Any]
) -> None:
    """Models from scratch have the words of their training rows, which depend on the seed."""
    common: dict[str, Any] = {"data": (str(reviews),), "heads": 2, "head_dim": 8, "word_dim": 16, "epochs": 1}
    with change_settings(token_dir=tmp_path / "tokens"):
        train(TextConfig(**common, max_length=None if "seed" in options else 8), tmp_path / "first")
        encoded_rows.clear()
        run = train(TextConfig(**common, **options), tmp_path / "second")
    assert sum(encoded_rows) > 160
    own = train(TextConfig(**common, **options), tmp_path / "own")
    assert run.metrics["metrics"] == own.metrics["metrics"]


def test_baselines_precede_training(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a study with the same rows end at about the same time, and would wait for the first one."""
    steps: list[str] = []
    for module, name in (("tasks.baselines", "compute_uncached"), ("training.core.pipeline", "fit")):
        function = getattr(import_module(f"headwise.{module}"), name)

        def call(*args: Any, name: str = name, function: Any = function, **kwargs: Any) -> Any:
            steps.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(f"headwise.{module}.{name}", call)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    config = TextConfig(data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=1)
    with change_settings(token_dir=tmp_path / "tokens"):
        run = train(config, tmp_path / "run")
    assert steps == ["compute_uncached", "fit"]
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "other")
    assert train(config, tmp_path / "own").metrics["baselines"] == run.metrics["baselines"]
    assert steps[2:] == ["fit", "compute_uncached"]
