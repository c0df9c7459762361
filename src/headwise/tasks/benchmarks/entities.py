"""CoNLL 2003: persons, places, organisations and others in news."""

from dataclasses import replace
from pathlib import Path

from headwise.tasks import conll
from headwise.tasks.benchmarks.layout import named, sources
from headwise.tasks.build_examples import examples, read_sources
from headwise.tasks.task import FINE_TUNING, Examples, Task

PATTERNS = {
    "train": ("eng.train", "train.txt", "train.conll", "train.*"),
    "dev": ("eng.testa", "valid.txt", "dev.txt", "dev.conll", "valid.*", "dev.*"),
    "test": ("eng.testb", "test.txt", "test.conll", "test.*"),
}


def load(data: Path | None, seed: int, cache: Path | None) -> Examples:
    found = {
        split: replace(source, read=conll.batches, way="conll") for split, source in sources(data, PATTERNS).items()
    }
    rows = read_sources(found, "tokens", text="words", label="tags", cache=cache)
    return examples(rows, seed=seed, origin=f"CoNLL 2003 ({named(data, found)})")


CONLL2003 = Task(
    name="conll2003",
    label_type="tokens",
    about="names of persons, places, organisations and others: English news",
    paper="TENER",
    source="eng.{train,testa,testb} or {train,valid,test}.txt: word first, tag last",
    read=load,
    fine_tuning=replace(FINE_TUNING, learning_rate=3e-5, batch_size=32),
)
