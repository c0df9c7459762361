"""A language to translate that is learnt in seconds: each word has one translation, and the order turns round."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwise.training import Finished, train
from headwise.training.translation.settings import Translation

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
SMALL: dict[str, Any] = {
    "source": "en",
    "target": "de",
    "model": "small",
    "layers": 1,
    "heads": 2,
    "head_dim": 16,
    "feedforward": 64,
    "dropout": 0.0,
    "vocabulary": 300,
    "batch_size": 800,
    "warmup": 40,
    "max_length": 16,
    "patience": 99,
    "beams": 2,
}


def translated(text: str) -> str:
    return " ".join(WORDS[word] for word in reversed(text.split()))


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(list(WORDS), k=draw.randint(1, 5))) for _ in range(count)]


def write(folder: Path, split: str, texts: Sequence[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.en").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (folder / f"{split}.de").write_text("".join(f"{translated(text)}\n" for text in texts), encoding="utf-8")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in {"train": 400, "dev": 40, "test": 40}.items():
        write(folder, split, sentences(count, seed=count))
    return folder


def settings(pairs: Path, **others: Any) -> Translation:
    return Translation(data=(str(pairs),), **(SMALL | others))


@pytest.fixture(scope="session")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A translator that has learnt its language."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
        return train(settings(pairs, steps=300, learning_rate=5e-3), tmp_path_factory.mktemp("runs") / "run")
