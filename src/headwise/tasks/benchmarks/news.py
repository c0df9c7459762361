"""AG's News: which of four topics is a piece of news about?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headwise.tasks.benchmarks.layout import named, sources
from headwise.tasks.build_examples import examples, read_sources
from headwise.tasks.formats import Batch, file_extension, read_batches, read_lines
from headwise.tasks.task import Examples, Task

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PUBLISHED = ("label", "title", "description")  # its files do not name them
PUBLISHED_ROWS = 120_000  # in train; a tenth of them is dev, as in the paper
PATTERNS = {
    "train": ("train.csv", "train_subset.*", "train.*", "train-*", "train"),
    "test": ("test.csv", "test.*", "test-*", "test"),
}


def whole(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The news with their titles, where they have one, before the text."""
    headless = file_extension(path) == ".csv" and next(read_lines(path), "").lstrip('"')[:1].isdigit()
    for batch in read_batches(path, header=PUBLISHED if headless else None):
        texts = batch.columns.get("text", batch.columns.get("description", ()))
        titles = batch.columns.get("title", [""] * len(texts))
        joined = [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]
        yield replace(batch, columns={"text": joined, "label": batch.columns["label"]})


def load(data: Path | None, seed: int, cache: Path | None) -> Examples:
    found = sources(data, PATTERNS, hub_name="fancyzhx/ag_news")
    if data is not None:
        found = {split: replace(source, read=whole, way="with titles") for split, source in found.items()}
    called = dict(zip("1234", TOPICS, strict=True))
    rows = read_sources(found, "classification", text="text", label="label", called=called, cache=cache)
    origin = f"AG's News, title and text ({named(data, found)})"
    if "train" in rows and (count := len(rows["train"].data)) != PUBLISHED_ROWS:
        origin += f"; {count:,} of the {PUBLISHED_ROWS:,} published train rows"
    return examples(rows, seed=seed, origin=origin, names=TOPICS)


AG_NEWS = Task(
    name="ag-news",
    label_type="classification",
    about="world, sports, business or science: news",
    paper="distance-aware transformer, Table 3: 108k/12k/7.6k",
    source="hub:fancyzhx/ag_news; {train,test}.csv as published, without a header, or with label, title, text",
    read=load,
)
