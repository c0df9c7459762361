"""What a reader of the documentation has at hand: files under the names that its commands and blocks use, all tiny."""

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


def lay_out(folder: Path) -> None:
    draw = random.Random(0)
    table(folder / "reviews.csv", ["text", "label"], reviews(draw, 80))
    table(folder / "other.csv", ["text", "label"], reviews(draw, 20))
    table(folder / "new.csv", ["text"], ([text] for text, _ in reviews(draw, 5)))
    table(folder / "news.csv", ["title", "topic"], ([text, label] for text, label in reviews(draw, 60)))
    (folder / "data" / "snli").mkdir(parents=True)
    for split in ("train", "dev", "test"):
        pairs = [
            [sentence(draw), sentence(draw), label_type]
            for label_type in ("entailment", "neutral", "contradiction") * 4
        ]
        table(folder / "data" / "snli" / f"{split}.csv", ["premise", "hypothesis", "label"], pairs)
    translations(folder / "multi30k", draw)
    (folder / "new.en").write_text("a good film\nthe plot is dull\n")

    simulate(
        SimulationConfig(titles=folder / "news.csv", text="title", label="topic", impressions=60, users=10),
        folder / "log",
    )
    (folder / "log").rename(folder / "MINDsmall")
    word_vectors(folder)
    bert(folder / "bert-base-uncased")


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(4, 9)))


def reviews(draw: random.Random, count: int) -> list[list[str]]:
    words = {"positive": "lovely", "negative": "awful"}
    return [[f"{sentence(draw)} {words[label]} film", label] for label in [*words] * (count // 2)]


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def translations(folder: Path, draw: random.Random) -> None:
    folder.mkdir()
    for split, count in {"train": 40, "dev": 6, "test": 6}.items():
        lines = [sentence(draw) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.de").write_text("\n".join(line.upper() for line in lines) + "\n")


def study(runs: Path) -> None:
    """Finished runs of two methods, as a study leaves them."""
    draw = np.random.default_rng(0)
    for method in ("none", "rpr"):
        for seed in range(3):
            made = classification_run(runs, method, seed, draw.random(40) < 0.8)
            (made.run_dir / "metrics.json").write_text(json.dumps(made.metrics))
            (runs / method).mkdir(exist_ok=True)
            made.run_dir.rename(runs / method / f"seed-{seed}")


def word_vectors(folder: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 100)).astype(np.float16)
    np.savez(folder / "glove.npz", words=np.array(WORDS), vectors=vectors)
    lines = [" ".join([word, *(f"{x:.3f}" for x in vector)]) for word, vector in zip(WORDS, vectors, strict=True)]
    (folder / "glove.6B.100d.txt").write_text("\n".join(lines) + "\n")


def bert(folder: Path) -> None:
    """A small BERT under a large one's name: a folder is looked for before the hub."""
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
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def names(page: str) -> dict[str, Any]:
    """What a page's blocks take for granted; what they take from the folder that we are in is put there."""
    if page == "studies.md":
        study(Path("study", "runs", "sst2"))
    return learning() if page in ("README.md", "guiding.md") else {}


def learning() -> dict[str, Any]:
    """A model, and labelled texts to teach it."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model: Any = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
    texts = [text for text, _ in reviews(random.Random(0), 16)]
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    labels = torch.tensor([0, 1] * 8)
    return {
        "model": model,
        "tokenizer": tokenizer,
        "train": Dataset.from_dict({**{name: found.tolist() for name, found in tokens.items()}, "labels": labels}),
        "batches": [{**tokens, "labels": labels}],
        "optimizer": torch.optim.AdamW(model.parameters()),
    }
