"""Data sets of the Hugging Face hub, when the user asks for one by name."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel, Dataset
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from headwise.errors import UserError
from headwise.tasks.arrow_cache import Source
from headwise.tasks.formats import BATCH_ROWS, Batch

PREFIX = "hub:"


def sources(name: str) -> dict[str, Source]:
    """The splits of a data set of the hub, by their names there.

    Args:
        name: `owner/name`, or `owner/name:configuration`.

    Raises:
        UserError: it cannot be had: no network, or no such data set.
    """
    path, _, configuration = name.partition(":")
    try:
        with offline(not answers(path)):
            found = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # whatever the hub's client raises: there are many, of several libraries
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UserError(
            f"{PREFIX}{name}: could not be had from the hub ({reason[0]}); with no network, give files: --data PATH"
        ) from None
    return {split: source(name, split, rows) for split, rows in found.items()}


def answers(path: str) -> bool:
    """Whether the hub can be reached."""
    try:
        HfApi().dataset_info(path, timeout=10)
    except HfHubHTTPError:  # it says no, so it is there
        return True
    except Exception:  # whatever the hub's client raises where it reaches nothing
        return False
    return True


@contextmanager
def offline(without_network: bool) -> Iterator[None]:
    """What was had before is used at once; the hub's client would try to reach the hub for half a minute first."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or without_network
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def source(name: str, split: str, rows: Dataset) -> Source:
    where = Path(f"{PREFIX}{name}", split)
    return Source((where,), partial(batches, rows), f"{where} {rows._fingerprint}")


def batches(rows: Dataset, path: Path, columns: Sequence[str] | None = None) -> Iterator[Batch]:
    """The rows, with classes by their names; a class of -1, which the hub gives to rows without one, is '-'."""
    first = 0
    for part in rows.iter(BATCH_ROWS):
        numbers = range(first, first + len(next(iter(part.values()))))
        values = {name: named(rows.features[name], column) for name, column in part.items()}
        yield Batch(path, numbers, [number + 1 for number in numbers], values)
        first += len(numbers)


def named(feature: Any, column: Sequence[Any]) -> Sequence[Any]:
    if isinstance(feature, ClassLabel):
        return ["-" if value in (None, -1) else feature.names[value] for value in column]
    inner = getattr(feature, "feature", None)
    return [named(inner, value) for value in column] if isinstance(inner, ClassLabel) else column
