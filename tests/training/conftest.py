"""Small data that can be learnt, and a small Hugging Face model to train further."""

import csv
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from headwise.models import build_tokenizer

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")
OTHERS = ("film", "plot", "actor", "scene", "music", "story", "end", "start")


def sentence(random: random.Random, label: str) -> str:
    words = random.choices(OTHERS, k=random.randint(3, 9))
    words.insert(random.randrange(len(words)), random.choice(GOOD if label == "positive" else BAD))
    return " ".join(words)


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    labels = ["positive" if i % 2 else "negative" for i in range(count)]
    return [(sentence(draw, label), label) for label in labels]


def write(path: Path, header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://localhost:9")  # where nobody answers


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(160)))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two small layers that knows the words."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = build_tokenizer([" ".join((*GOOD, *BAD, *OTHERS, "."))], framed=True, max_tokens=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def half_bert(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, saved in half precision."""
    folder = tmp_path_factory.mktemp("half")
    BertModel.from_pretrained(bert, dtype=torch.float16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    return folder


Headwise = Callable[..., tuple[int, str, str]]


@pytest.fixture
def headwise(capsys: pytest.CaptureFixture[str]) -> Headwise:
    """The command line: its exit code, and what it printed and complained."""
    from headwise.cli import main

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
