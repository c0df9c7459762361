"""Amazon Electronics: the stars of reviews, as five classes or as a number."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headwise.tasks.benchmarks.layout import find_sources, format_files
from headwise.tasks.build_examples import build_examples, read_sources
from headwise.tasks.formats import Batch, file_extension, read_batches
from headwise.tasks.task import Examples, LabelType, Task

STARS = ("1", "2", "3", "4", "5")
PATTERNS = {"all": ("reviews_Electronics_5.json", "*Electronics*.json*", "*stars.csv")}
SPLIT_SIZES = {"dev": 5_000, "test": 5_000, "train": 40_000}


def read_reviews(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read reviews with a text from the published JSON file, or from a CSV file with columns domain, stars and text."""
    is_published = file_extension(path) != ".csv"
    names = ("reviewText", "overall") if is_published else ("text", "stars", "domain")
    for batch in read_batches(path, names):
        texts, stars, *domains = (batch.columns[name] for name in names)
        indices = [index for index, text in enumerate(texts) if text and not text.isspace()]
        if not is_published:
            indices = [index for index in indices if domains[0][index] == "electronics"]
        rows, lines, texts, stars = (
            [values[index] for index in indices] for values in (batch.rows, batch.lines, texts, stars)
        )
        yield Batch(path, rows, lines, {"text": texts, "label": stars})


def load(data: Path | None, seed: int, cache: Path | None, *, label_type: LabelType) -> Examples:
    """Load the reviews, with stars as classes or as ratings."""
    sources = {
        split: replace(source, read=read_reviews, cache_key="electronics")
        for split, source in find_sources(data, PATTERNS).items()
    }
    label_names = {f"{star}.0": star for star in STARS}
    rows = read_sources(sources, label_type, text="text", label="label", label_names=label_names, cache=cache)
    origin = f"Amazon Electronics, reviews with a text ({format_files(data, sources)})"
    class_names = None if label_type == "regression" else STARS
    return build_examples(rows, seed=seed, origin=origin, class_names=class_names, split_sizes=SPLIT_SIZES)


ABOUT = "number of stars of a review of electronics"
SOURCE = "reviews_Electronics_5.json.gz (5-core) with reviewText and overall; or *stars.csv with domain, stars and text"

AMAZON = Task(
    name="amazon-electronics",
    label_type="classification",
    about=f"{ABOUT}: five classes",
    paper="distance-aware transformer, Table 3 (40k train, 5k dev, 5k test rows; hierarchical model)",
    source=SOURCE,
    read=partial(load, label_type="classification"),
    hierarchical=True,
)

AMAZON_RATING = Task(
    name="amazon-electronics-rating",
    label_type="regression",
    about=f"{ABOUT}: a number from 1 to 5",
    paper="distance-aware transformer, Figure 3 (40k train, 5k dev, 5k test rows; hierarchical model)",
    source=SOURCE,
    read=partial(load, label_type="regression"),
    hierarchical=True,
)
