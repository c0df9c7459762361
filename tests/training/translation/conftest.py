"""An artificial language that a translator learns in seconds: each word has one translation."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwise.training import RunResult, train
from headwise.training.translation.config import TranslationConfig
from tests.shared_dirs import build_once

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SMALL: dict[str, Any] = {
    "source": "en",
    "target": "de",
    "model": "small",
    "layers": 1,
    "heads": 2,
    "head_dim": 32,
    "feedforward": 64,
    "dropout": 0.0,
    "vocabulary": 300,
    "batch_size": 800,
    "warmup": 40,
    "max_length": 16,
    "early_stopping_patience": 99,
    "beams": 2,
}

#: Options with which a model learns the whole language.
SUFFICIENT: dict[str, Any] = {"steps": 160, "learning_rate": 5e-3, "scheme": "plain"}


def translate_words(text: str) -> str:
    return " ".join(WORDS[word] for word in text.split())


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.sample(list(WORDS), k=draw.randint(1, 4))) for _ in range(count)]


def write(directory: Path, split: str, texts: Sequence[str]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{split}.en").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (directory / f"{split}.de").write_text("".join(f"{translate_words(text)}\n" for text in texts), encoding="utf-8")


def write_splits(directory: Path) -> None:
    for seed, (split, count) in enumerate({"train": 400, "dev": 40, "test": 40}.items()):
        write(directory, split, sentences(count, seed))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_once(tmp_path_factory, "pairs", write_splits)


def build_config(pairs: Path, **options: Any) -> TranslationConfig:
    return TranslationConfig(data=(str(pairs),), **(SMALL | options))


@pytest.fixture(scope="package")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run whose translator has learned the language: a copy of the one that the first worker trains."""

    def train_run(directory: Path) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr("headwise.training.translation.pipeline.NUM_EVALUATIONS", 3)
            train(build_config(pairs, **SUFFICIENT), directory / "run")

    trained = build_once(tmp_path_factory, "translator", train_run) / "run"
    copy = shutil.copytree(trained, tmp_path_factory.mktemp("runs") / "run")
    return RunResult(copy, json.loads((copy / "metrics.json").read_text(encoding="utf-8")))
