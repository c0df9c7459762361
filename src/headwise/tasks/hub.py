"""Data sets of the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import datasets
from datasets import ClassLabel, Dataset
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from headwise.errors import UserError, first_line
from headwise.tasks.arrow_cache import Source
from headwise.tasks.formats import BATCH_ROWS, Batch

PREFIX = "hub:"


def load_sources(name: str) -> dict[str, Source]:
    """Load the splits of a data set, by their names on the hub.

    Args:
        name: `owner/name`, or `owner/name:configuration`.

    Raises:
        UserError: The hub cannot be reached, or there is no such data set.
    """
    repo_id, _, configuration = name.partition(":")
    try:
        with offline_mode(not is_hub_reachable(repo_id, "dataset")):
            splits = datasets.load_dataset(repo_id, configuration or None)
    except Exception as error:  # the client raises errors of several libraries
        raise UserError(
            f"{PREFIX}{name}: cannot be loaded from the hub ({first_line(error)}); without a network, use files: "
            "--data PATH"
        ) from None
    return {split: build_source(name, split, rows) for split, rows in splits.items()}


def is_hub_reachable(repo_id: str, repo_type: Literal["dataset", "model"]) -> bool:
    """Return whether the hub answers. If it does not, its client would retry for half a minute."""
    try:
        HfApi().repo_info(repo_id, repo_type=repo_type, timeout=10)
    except (HfHubHTTPError, HFValidationError):  # the hub answered, or the name is invalid
        return True
    except Exception:  # the client raises errors of several libraries if it has no connection
        return False
    return True


@contextmanager
def offline_mode(is_offline: bool) -> Iterator[None]:
    """Load data sets from the cache without trying to reach the hub."""
    previous = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = previous or is_offline
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = previous


def build_source(name: str, split: str, rows: Dataset) -> Source:
    """Return a split of a data set as a source."""
    path = Path(f"{PREFIX}{name}", split)
    return Source((path,), partial(read_dataset, rows), f"{path} {rows._fingerprint}")


def read_dataset(rows: Dataset, path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """Read the rows of a data set, with class names as labels. Class -1, of rows without a label, becomes "-"."""
    start = 0
    for batch in rows.iter(BATCH_ROWS):
        indices = range(start, start + len(next(iter(batch.values()))))
        values = {name: to_class_names(rows.features[name], column) for name, column in batch.items()}
        yield Batch(path, indices, [index + 1 for index in indices], values)
        start += len(indices)


def to_class_names(feature: Any, column: Sequence[Any]) -> Sequence[Any]:
    """Replace class indices by class names."""
    if isinstance(feature, ClassLabel):
        return ["-" if value in (None, -1) else feature.names[value] for value in column]
    element = getattr(feature, "feature", None)
    return [to_class_names(element, value) for value in column] if isinstance(element, ClassLabel) else column
