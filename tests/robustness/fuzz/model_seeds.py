"""Valid run directories and model directories, small enough to be loaded dozens of times a second."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.robustness.fuzz.mutations import HOSTILE_VALUES

#: Python code in the model's directory. The guard reports it when it is run.
CODE = """
from pathlib import Path
Path(__file__).with_name("CODE_HAS_RUN").touch()
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
class OwnConfig(BertConfig):
    model_type = "own-model"
class OwnModel(BertModel):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
WORDS = "good fine great bad poor awful film plot actor scene music story"


@contextmanager
def without_rendering() -> Iterator[None]:
    """Build the figures of reports without rendering them, which takes half of the time."""
    from headwise.inspection import style

    save_figure = style.save_figure
    style.save_figure = lambda figure, file: None
    try:
        yield
    finally:
        style.save_figure = save_figure


def prepare_code(directory: Path) -> None:
    """Add Python code, and the options that ask for it are among the values that mutations insert."""
    assert any("own.OwnModel" in str(value) for value in HOSTILE_VALUES)
    (directory / "own.py").write_text(CODE, encoding="utf-8")


def write_reviews(path: Path) -> Path:
    """Write a table that a model can be trained on."""
    words = WORDS.split()
    rows = [f"{words[i % 6]} {words[6 + i % 5]},{'positive' if i % 6 < 3 else 'negative'}\n" for i in range(40)]
    path.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    return path


def move_run(run: Path, directory: Path) -> None:
    """Move the files of a finished run to a directory, and replace the paths of data in its configuration."""
    import yaml

    for path in run.iterdir():
        if path.name != "checkpoints":
            shutil.move(path, directory / path.name)
    options = yaml.safe_load((directory / "run.yaml").read_text(encoding="utf-8"))
    (directory / "run.yaml").write_text(yaml.safe_dump(options | {"data": ["reviews.csv"]}), encoding="utf-8")
    prepare_code(directory)


def prepare_text_run(directory: Path) -> None:
    """Train a classifier."""
    from headwise.training import TextConfig, train

    data = write_reviews(directory / "reviews.csv")
    train(TextConfig(data=(str(data),), heads=2, head_dim=4, word_dim=8, epochs=1), directory / "run")
    move_run(directory / "run", directory)


def prepare_unfinished_run(directory: Path) -> None:
    """Train a classifier, and leave what a run that was killed after its last checkpoint has."""
    from headwise.training import TextConfig, train

    data = write_reviews(directory.parent / "resume-reviews.csv")
    options: dict[str, Any] = {"heads": 2, "head_dim": 4, "word_dim": 8, "epochs": 1, "batch_size": 32}
    train(TextConfig(data=(str(data),), **options), directory / "run")
    for name in ("run.yaml", "checkpoints"):
        shutil.move(directory / "run" / name, directory / name)
    shutil.rmtree(directory / "run")


def prepare_document_run(directory: Path) -> None:
    """Train a hierarchical classifier of text pairs."""
    from headwise.training import TextConfig, train

    data = directory / "reviews.csv"
    rows = [f"a film {i}. a plot.,a story {i},{i % 2}\n" for i in range(40)]
    data.write_text("text,pair,label\n" + "".join(rows), encoding="utf-8")
    options: dict[str, Any] = {"model": "rpr", "hierarchy": (4, 3), "heads": 2, "head_dim": 4, "word_dim": 8}
    train(TextConfig(data=(str(data),), epochs=1, **options), directory / "run")
    move_run(directory / "run", directory)


def prepare_translation_run(directory: Path) -> None:
    """Train a translator."""
    from headwise.training import train
    from headwise.training.translation.config import TranslationConfig

    for split in ("train", "dev", "test"):
        for language, words in (("en", "one two three"), ("de", "eins zwei drei")):
            (directory / f"{split}.{language}").write_text(f"{words}\n" * 20, encoding="utf-8")
    (directory / "sentence.en").write_text("one two\n", encoding="utf-8")
    config = TranslationConfig(
        data=(str(directory),), source="en", target="de", model="small", layers=1, heads=2, head_dim=4, feedforward=8,
        vocabulary=300, batch_size=80, warmup=2, steps=2, max_length=8, beams=1,
    )  # fmt: skip
    train(config, directory / "run")
    move_run(directory / "run", directory)


def prepare_recommendation_run(directory: Path) -> None:
    """Train a recommender."""
    from headwise.training import train
    from headwise.training.recommendation.config import RecommendationConfig

    log = directory / "log"
    for split in ("train", "dev"):
        (log / split).mkdir(parents=True)
        news = "".join(f"N{i}\tnews\tnews\ta title of {i % 5}\t\t\t[]\t[]\n" for i in range(9))
        clicks = "".join(f"{i}\tU{i % 3}\tt\tN1 N2\tN3-{i % 2} N4-{1 - i % 2}\n" for i in range(20))
        (log / split / "news.tsv").write_text(news, encoding="utf-8")
        (log / split / "behaviors.tsv").write_text(clicks, encoding="utf-8")
    options: dict[str, Any] = {"heads": 2, "head_dim": 4, "word_dim": 8, "history": 3, "epochs": 1, "negatives": 1}
    train(RecommendationConfig(task="mind", data=(str(log),), **options), directory / "run")
    move_run(directory / "run", directory)


def prepare_bert(directory: Path, *, scheme: str | None = None) -> None:
    """Write a BERT classifier with one layer of width 8, optionally with a retrofitted scheme."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from headwise.integrations import retrofit
    from headwise.models import build_tokenizer

    torch.manual_seed(0)
    tokenizer = build_tokenizer([WORDS], framed=True, max_tokens=16)
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config.num_labels = 2
    model = BertForSequenceClassification(config)
    if scheme is not None:
        retrofit(model, scheme)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    prepare_code(directory)
    write_reviews(directory / "reviews.csv")


def prepare_checkpoint(directory: Path) -> None:
    checkpoint = directory / "checkpoints" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"0123456789")
    (checkpoint / "trainer_state.json").write_bytes(b"{}\n")
    (checkpoint / "manifest.json").write_bytes(b'{"model.safetensors": 10, "trainer_state.json": 3}')
