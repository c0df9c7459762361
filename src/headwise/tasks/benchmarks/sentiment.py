"""Stanford Sentiment Treebank: the sentiment of sentences in film reviews, as two or five classes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Source
from headwise.tasks.benchmarks.layout import Patterns, find_sources, format_files
from headwise.tasks.build_examples import build_examples, read_sources
from headwise.tasks.formats import EXTENSIONS, Batch, file_extension, read_lines
from headwise.tasks.labels import EXCLUDED
from headwise.tasks.task import Examples, Task

FIVE_CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
TWO_CLASSES = ("negative", "positive")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def file_patterns(granularity: str) -> Patterns:
    """Return the patterns of each split; granularity is `binary` or `fine`."""
    splits = {"train": ("train",), "dev": ("dev", "validation"), "test": ("test",)}
    return {
        split: (f"stsa.{granularity}.{split}", *(f"{word}{end}" for word in words for end in (".*", "-*", "")))
        for split, words in splits.items()
    }


def read_sentences(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read one sentence per line: a labeled tree, `(3 (2 Good) (2 film))`, or a label and a text, `1 good film`."""
    labels, texts = [], []
    for number, line in enumerate(read_lines(path), 1):
        match = re.match(r"\(?([0-4]) (.*)", line)
        if match is None:
            raise UserError(f"{path}, line {number}: expected a tree, (3 (2 Good) (2 film)), or 1 good film")
        words = re.findall(r" ([^ ()]+)\)", line) if line.startswith("(") else match[2].split()
        labels.append(match[1])
        texts.append(" ".join(BRACKETS.get(word, word) for word in words))
    yield Batch(path, range(len(texts)), range(1, len(texts) + 1), {"text": texts, "label": labels})


@dataclass(frozen=True)
class TreebankLoader:
    """Loads the treebank.

    Args:
        title: The name in the recipe.
        patterns: The files of each split.
        class_names: The classes.
        label_names: The class name of each label.
        tree_label_names: The same for trees.
        hub_name: The name on the hub.
    """

    title: str
    patterns: Patterns
    class_names: Sequence[str]
    label_names: Mapping[str, str]
    tree_label_names: Mapping[str, str]
    hub_name: str

    def __call__(self, data: Path | None, seed: int, cache: Path | None) -> Examples:
        """Load the sentences."""
        sources = find_sources(data, self.patterns, hub_name=self.hub_name)
        label_names = self.label_names
        first_file = next(iter(sources.values())).files[0]
        if data is not None and file_extension(first_file) not in EXTENSIONS:
            sources = {split: Source(source.files, read_sentences, "sentences") for split, source in sources.items()}
            label_names = self.tree_label_names if file_extension(first_file) == ".txt" else self.label_names
        rows = read_sources(sources, "classification", label_names=label_names, cache=cache)
        origin = f"{self.title} ({format_files(data, sources)})"
        return build_examples(rows, seed=seed, origin=origin, class_names=self.class_names, exclusion_reason="neutral")


SST2 = Task(
    name="sst2",
    label_type="classification",
    about="sentiment of a sentence from a film review: positive or negative",
    paper="distance-aware transformer, Table 4",
    source="hub:SetFit/sst2; trees/{train,dev,test}.txt (without neutral ones); {train,dev,test}.csv: text, label",
    read=TreebankLoader(
        "SST-2, sentences",
        file_patterns("binary"),
        TWO_CLASSES,
        dict(zip("01", TWO_CLASSES, strict=True)),
        {"0": "negative", "1": "negative", "2": EXCLUDED, "3": "positive", "4": "positive"},
        "SetFit/sst2",
    ),
)

SST5 = Task(
    name="sst5",
    label_type="classification",
    about="sentiment of a sentence from a film review: five classes, very negative to very positive",
    source="hub:SetFit/sst5; trees/{train,dev,test}.txt; or {train,dev,test}.csv with text and label",
    read=TreebankLoader(
        "SST-5, sentences",
        file_patterns("fine"),
        FIVE_CLASSES,
        dict(zip("01234", FIVE_CLASSES, strict=True)),
        dict(zip("01234", FIVE_CLASSES, strict=True)),
        "SetFit/sst5",
    ),
)
