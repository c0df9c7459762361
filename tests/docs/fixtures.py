"""Small files and models with the names that the commands and code blocks of the documentation use."""

import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import BertConfig, BertModel

from headwise.models import build_tokenizer
from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from tests.studies.simulated import classification_run

NOUNS = ["film", "plot", "actor", "scene", "music", "story", "end", "start"]
WORDS = [*NOUNS, "a", "the", "is", "and", "good", "fine", "great", "lovely", "bad", "poor", "awful", "dull"]
LABEL_WORDS = {"positive": "lovely", "negative": "awful"}


def write_files(directory: Path) -> None:
    """Write all files."""
    rng = random.Random(0)
    write_csv(directory / "reviews.csv", ["text", "label"], draw_reviews(rng, 80))
    write_csv(directory / "other.csv", ["text", "label"], draw_reviews(rng, 20))
    write_csv(directory / "new.csv", ["text"], ([text] for text, _ in draw_reviews(rng, 5)))
    write_csv(directory / "news.csv", ["title", "topic"], draw_reviews(rng, 60))
    (directory / "data" / "snli").mkdir(parents=True)
    for split in ("train", "dev", "test"):
        labels = ("entailment", "neutral", "contradiction") * 4
        pairs = [[draw_sentence(rng), draw_sentence(rng), label] for label in labels]
        write_csv(directory / "data" / "snli" / f"{split}.csv", ["premise", "hypothesis", "label"], pairs)
    write_translations(directory / "multi30k", rng)
    (directory / "new.en").write_text("a good film\nthe plot is dull\n")
    simulate(
        SimulationConfig(titles=directory / "news.csv", text="title", label="topic", impressions=60, users=10),
        directory / "MINDsmall",
    )
    write_word_vectors(directory)
    write_bert(directory / "bert-base-uncased")


def draw_sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(4, 9)))


def draw_reviews(rng: random.Random, count: int) -> list[list[str]]:
    """Draw texts with their labels; each label has a word of its own."""
    return [[f"{draw_sentence(rng)} {LABEL_WORDS[label]} film", label] for label in [*LABEL_WORDS] * (count // 2)]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def write_translations(directory: Path, rng: random.Random) -> None:
    """Write line-aligned files; the translation is the source in upper case."""
    directory.mkdir()
    for split, count in {"train": 40, "dev": 6, "test": 6}.items():
        lines = [draw_sentence(rng) for _ in range(count)]
        (directory / f"{split}.en").write_text("\n".join(lines) + "\n")
        (directory / f"{split}.de").write_text("\n".join(line.upper() for line in lines) + "\n")


def write_study_runs(directory: Path) -> None:
    """Write finished runs of two methods in the layout of a study."""
    rng = np.random.default_rng(0)
    for method in ("none", "rpr"):
        for seed in range(3):
            result = classification_run(directory, method, seed, rng.random(40) < 0.8)
            (result.run_dir / "metrics.json").write_text(json.dumps(result.metrics))
            (directory / method).mkdir(exist_ok=True)
            result.run_dir.rename(directory / method / f"seed-{seed}")


def write_word_vectors(directory: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 100)).astype(np.float16)
    np.savez(directory / "glove.npz", words=np.array(WORDS), vectors=vectors)
    lines = [" ".join([word, *(f"{x:.3f}" for x in vector)]) for word, vector in zip(WORDS, vectors, strict=True)]
    (directory / "glove.6B.100d.txt").write_text("\n".join(lines) + "\n")


def write_bert(directory: Path) -> None:
    """Write a small BERT with the name of a model on the hub; local directories take precedence."""
    tokenizer = build_tokenizer([" ".join([*WORDS, "."])] * 2, framed=True, max_tokens=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def prepare_page(page: str) -> dict[str, Any]:
    """Return the variables that the code blocks of a page use, and write its own files to the working directory."""
    if page == "studies.md":
        write_study_runs(Path("study", "runs", "sst2"))
    return training_variables() if page in ("README.md", "guiding.md") else {}


def training_variables() -> dict[str, Any]:
    """Return a model, its tokenizer and labelled texts as a data set and as a batch, and an optimizer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model: Any = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    texts = [text for text, _ in draw_reviews(random.Random(0), 16)]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    labels = torch.tensor([0, 1] * 8)
    return {
        "model": model,
        "tokenizer": tokenizer,
        "train": Dataset.from_dict({**{name: x.tolist() for name, x in inputs.items()}, "labels": labels}),
        "batches": [{**inputs, "labels": labels}],
        "optimizer": torch.optim.AdamW(model.parameters()),
    }
