"""Stanford Sentiment Treebank: how does a sentence of a film review feel? In two classes and in five."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Source
from headwise.tasks.benchmarks.layout import Patterns, named, sources
from headwise.tasks.build_examples import examples, read_sources
from headwise.tasks.formats import EXTENSIONS, Batch, file_extension, read_lines
from headwise.tasks.labels import LEFT_OUT
from headwise.tasks.task import Examples, Task

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
TWO = ("negative", "positive")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def patterns(kind: str) -> Patterns:
    splits = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
    return {
        split: (f"stsa.{kind}.{split}", *(f"{word}{end}" for word in words for end in (".*", "-*", "")))
        for split, words in splits.items()
    }


def sentences(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """A sentence a line: a tree with its class first, `(3 (2 Good) (2 film))`, or a class before it, `1 good film`."""
    classes, texts = [], []
    for number, line in enumerate(read_lines(path), 1):
        found = re.match(r"\(?([0-4]) (.*)", line)
        if found is None:
            raise UserError(f"{path}, line {number}: expected a tree, (3 (2 Good) (2 film)), or 1 good film")
        leaves = re.findall(r" ([^ ()]+)\)", line) if line.startswith("(") else found[2].split()
        classes.append(found[1])
        texts.append(" ".join(BRACKETS.get(word, word) for word in leaves))
    yield Batch(path, range(len(texts)), range(1, len(texts) + 1), {"text": texts, "label": classes})


@dataclass(frozen=True)
class Sentences:
    """How the treebank's files become examples."""

    title: str
    patterns: Patterns
    names: Sequence[str]
    called: Mapping[str, str]
    in_trees: Mapping[str, str]
    hub_name: str

    def __call__(self, data: Path | None, seed: int, cache: Path | None) -> Examples:
        found = sources(data, self.patterns, hub_name=self.hub_name)
        called = self.called
        first = next(iter(found.values())).files[0]
        if data is not None and file_extension(first) not in EXTENSIONS:
            found = {split: Source(source.files, sentences, "sentences") for split, source in found.items()}
            called = self.in_trees if file_extension(first) == ".txt" else self.called
        rows = read_sources(found, "classification", called=called, cache=cache)
        origin = f"{self.title} ({named(data, found)})"
        return examples(rows, seed=seed, origin=origin, names=self.names, left_out="neutral")


SST2 = Task(
    name="sst2",
    label_type="classification",
    about="positive or negative: sentences of film reviews",
    paper="distance-aware transformer, Table 4",
    source="hub:SetFit/sst2; trees/{train,dev,test}.txt (neutral left out); {train,dev,test}.csv with text, label",
    read=Sentences(
        "SST-2, sentences",
        patterns("binary"),
        TWO,
        dict(zip("01", TWO, strict=True)),
        {"0": "negative", "1": "negative", "2": LEFT_OUT, "3": "positive", "4": "positive"},
        "SetFit/sst2",
    ),
)

SST5 = Task(
    name="sst5",
    label_type="classification",
    about="very negative to very positive, five classes: sentences of film reviews",
    source="hub:SetFit/sst5; trees/{train,dev,test}.txt; {train,dev,test}.csv with text, label",
    read=Sentences(
        "SST-5, sentences",
        patterns("fine"),
        FIVE,
        dict(zip("01234", FIVE, strict=True)),
        dict(zip("01234", FIVE, strict=True)),
        "SetFit/sst5",
    ),
)
