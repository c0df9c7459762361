"""Small data that can be learned, a small Hugging Face model, and the command line."""

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from transformers import AutoTokenizer, BertConfig, BertModel

from headwise.inspection import style
from headwise.models import build_tokenizer
from tests.blank_figures import BlankFigure
from tests.short_form import choose_size

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")
OTHERS = ("film", "plot", "actor", "scene", "music", "story", "end", "start")


def sentence(random: random.Random, label: str) -> str:
    words = random.choices(OTHERS, k=random.randint(3, 9))
    words.insert(random.randrange(len(words)), random.choice(GOOD if label == "positive" else BAD))
    return " ".join(words)


def rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return texts with their labels, of which one word decides."""
    generator = random.Random(seed)
    labels = ["positive" if i % 2 else "negative" for i in range(count)]
    return [(sentence(generator, label), label) for label in labels]


def write(path: Path, header: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> Path:
    """Write a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
        patch.setattr("huggingface_hub.constants.ENDPOINT", "http://localhost:9")  # no server listens there
        yield


@pytest.fixture(scope="package", autouse=True)
def cheap_figures() -> Iterator[None]:
    """Draw figures small and without a layout, and blank in the short form: half of the time of short runs."""
    small = choose_size(short=BlankFigure, long=lambda figsize, layout: Figure(figsize=figsize))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.inspection.style.Figure", small)
        patch.setitem(style.RC_PARAMS, "savefig.dpi", 20)
        yield


@pytest.fixture(scope="package", autouse=True)
def cheap_baselines() -> Iterator[None]:
    """Choose the regularization of linear baselines by two folds, not five, and of fewer values in the short form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.tasks.tfidf.NUM_FOLDS", choose_size(short=2, long=5))
        patch.setattr("headwise.tasks.tfidf.CS", choose_size(short=(1.0, 10.0), long=(0.1, 1.0, 10.0, 100.0)))
        yield


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(160)))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with two small layers and the vocabulary of the data."""
    model_dir = tmp_path_factory.mktemp("bert")
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
    BertModel(config).save_pretrained(model_dir)
    tokenizer.save_pretrained(model_dir)
    return model_dir


@pytest.fixture(scope="session")
def half_bert(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same BERT, saved in half precision."""
    model_dir = tmp_path_factory.mktemp("half")
    BertModel.from_pretrained(bert, dtype=torch.float16).save_pretrained(model_dir)
    AutoTokenizer.from_pretrained(bert).save_pretrained(model_dir)
    return model_dir


Headwise = Callable[..., tuple[int, str, str]]


@pytest.fixture
def headwise(capsys: pytest.CaptureFixture[str]) -> Headwise:
    """The command line. A call returns the exit code, standard output and standard error."""
    from headwise.cli import main

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
