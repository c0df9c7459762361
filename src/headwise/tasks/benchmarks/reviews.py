"""Amazon Electronics: how many stars did the reviewer give? As five classes, and as a number."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headwise.tasks.benchmarks.layout import named, sources
from headwise.tasks.build_examples import examples, read_sources
from headwise.tasks.formats import Batch, file_extension, read_batches
from headwise.tasks.task import Examples, LabelType, Task

STARS = ("1", "2", "3", "4", "5")
PATTERNS = {"all": ("reviews_Electronics_5.json", "*Electronics*.json*", "*stars.csv")}
DRAWN = {"dev": 5_000, "test": 5_000, "train": 40_000}


def electronics(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Reviews with a text: as published, one JSON object each, or of a CSV file with columns domain, stars and text."""
    published = file_extension(path) != ".csv"
    names = ("reviewText", "overall") if published else ("text", "stars", "domain")
    for batch in read_batches(path, names):
        texts, stars, *domains = (batch.columns[name] for name in names)
        kept = [index for index, text in enumerate(texts) if text and not text.isspace()]
        if not published:
            kept = [index for index in kept if domains[0][index] == "electronics"]
        rows, lines, texts, stars = (
            [values[index] for index in kept] for values in (batch.rows, batch.lines, texts, stars)
        )
        yield Batch(path, rows, lines, {"text": texts, "label": stars})


def load(data: Path | None, seed: int, cache: Path | None, *, label_type: LabelType) -> Examples:
    found = {
        split: replace(source, read=electronics, way="electronics") for split, source in sources(data, PATTERNS).items()
    }
    called = {f"{star}.0": star for star in STARS}
    rows = read_sources(found, label_type, text="text", label="label", called=called, cache=cache)
    origin = f"Amazon Electronics, reviews with a text ({named(data, found)})"
    names = None if label_type == "regression" else STARS
    return examples(rows, seed=seed, origin=origin, names=names, drawn=DRAWN)


ABOUT = "one to five stars: reviews of electronics"
SOURCE = "reviews_Electronics_5.json.gz (5-core, reviewText and overall), or a *stars.csv with domain, stars, text"

AMAZON = Task(
    name="amazon-electronics",
    label_type="classification",
    about=ABOUT,
    paper="distance-aware transformer, Table 3: 40k/5k/5k, words → sentences → review",
    source=SOURCE,
    read=partial(load, label_type="classification"),
    hierarchical=True,
)

AMAZON_RATING = Task(
    name="amazon-electronics-rating",
    label_type="regression",
    about=f"{ABOUT}, as a number",
    paper="distance-aware transformer, Figure 3: 40k/5k/5k, words → sentences → review",
    source=SOURCE,
    read=partial(load, label_type="regression"),
    hierarchical=True,
)
