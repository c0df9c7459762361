"""CoNLL 2003: named entities in English news."""

from dataclasses import replace
from pathlib import Path

from headwise.tasks.benchmarks.layout import find_sources, format_files
from headwise.tasks.build_examples import build_examples, read_sources
from headwise.tasks.conll import read_conll
from headwise.tasks.task import FINE_TUNING, Examples, Task

PATTERNS = {
    "train": ("eng.train", "train.txt", "train.conll", "train.*"),
    "dev": ("eng.testa", "valid.txt", "dev.txt", "dev.conll", "valid.*", "dev.*"),
    "test": ("eng.testb", "test.txt", "test.conll", "test.*"),
}


def load(data: Path | None, seed: int, cache: Path | None) -> Examples:
    """Load the sentences."""
    sources = {
        split: replace(source, read=read_conll, cache_key="conll")
        for split, source in find_sources(data, PATTERNS).items()
    }
    rows = read_sources(sources, "tokens", text="words", label="tags", cache=cache)
    return build_examples(rows, seed=seed, origin=f"CoNLL 2003 ({format_files(data, sources)})")


CONLL2003 = Task(
    name="conll2003",
    label_type="tokens",
    about="named entities in English news: persons, locations, organizations and others",
    paper="TENER",
    source="eng.{train,testa,testb} or {train,valid,test}.txt; the first column is the word, the last one the tag",
    read=load,
    fine_tuning=replace(FINE_TUNING, learning_rate=3e-5, batch_size=32),
)
