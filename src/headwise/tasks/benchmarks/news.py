"""AG's News: the topic of news."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from headwise.tasks.benchmarks.layout import find_sources, format_files
from headwise.tasks.build_examples import build_examples, read_sources
from headwise.tasks.formats import Batch, file_extension, read_batches, read_lines
from headwise.tasks.task import Examples, Task

TOPICS = ("World", "Sports", "Business", "Sci/Tech")
PUBLISHED_COLUMNS = ("label", "title", "description")  # the published files have no header
PUBLISHED_ROWS = 120_000  # of train; without dev rows, a tenth of them is dev, as in the paper
PATTERNS = {
    "train": ("train.csv", "train_subset.*", "train.*", "train-*", "train"),
    "dev": ("dev.*", "dev-*", "validation.*", "validation-*"),  # not published
    "test": ("test.csv", "test.*", "test-*", "test"),
}


def read_news(path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read news, with the title, if there is one, before the text."""
    has_no_header = file_extension(path) == ".csv" and next(read_lines(path), "").lstrip('"')[:1].isdigit()
    for batch in read_batches(path, header=PUBLISHED_COLUMNS if has_no_header else None):
        texts = batch.columns.get("text", batch.columns.get("description", ()))
        titles = batch.columns.get("title", [""] * len(texts))
        news = [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]
        yield replace(batch, columns={"text": news, "label": batch.columns["label"]})


def load(data: Path | None, seed: int, cache: Path | None) -> Examples:
    """Load the news."""
    sources = find_sources(data, PATTERNS, hub_name="fancyzhx/ag_news")
    if data is not None:
        sources = {split: replace(source, read=read_news, cache_key="with titles") for split, source in sources.items()}
    label_names = dict(zip("1234", TOPICS, strict=True))
    rows = read_sources(sources, "classification", text="text", label="label", label_names=label_names, cache=cache)
    origin = f"AG's News, title and text ({format_files(data, sources)})"
    if "train" in rows and (num_rows := len(rows["train"].data)) != PUBLISHED_ROWS:
        origin += f"; {num_rows:,} of the {PUBLISHED_ROWS:,} published train rows"
    return build_examples(rows, seed=seed, origin=origin, class_names=TOPICS)


AG_NEWS = Task(
    name="ag-news",
    label_type="classification",
    about="topic of a news article: world, sports, business, or science and technology",
    paper="distance-aware transformer, Table 3 (108k train, 12k dev, 7.6k test rows)",
    source="hub:fancyzhx/ag_news; or {train,test}.csv as published, without a header, or with label, title and text",
    read=load,
)
