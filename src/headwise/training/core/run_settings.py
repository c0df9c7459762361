"""Settings of the runs of a study, which are not part of their configuration."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunSettings:
    """How runs in a context are evaluated and stored.

    Args:
        results_only: write only `run.yaml`, `metrics.json` and predictions: no model, card or report.
        only_split: evaluate only this split, if the run has it.
        checkpoint_seconds: the minimum number of seconds between two checkpoints, with the best weights in memory; 0
            if every epoch has a checkpoint.
        token_dir: the directory of tokenized splits that runs share, also those of other processes; None if each run
            tokenizes its own.
    """

    results_only: bool = False
    only_split: str | None = None
    checkpoint_seconds: float = 0.0
    token_dir: Path | None = None


_DEFAULT = RunSettings()
_SETTINGS: ContextVar[RunSettings] = ContextVar("_SETTINGS", default=_DEFAULT)


@contextmanager
def change_settings(**values: Any) -> Iterator[None]:
    """Change settings of the runs in this context."""
    token = _SETTINGS.set(replace(_SETTINGS.get(), **values))
    try:
        yield
    finally:
        _SETTINGS.reset(token)


def get_settings() -> RunSettings:
    """Return the settings of runs in this context."""
    return _SETTINGS.get()


def evaluated_splits(splits: Iterable[str]) -> list[str]:
    """Return the splits of a run that are evaluated at its end, of those that it has."""
    names = [split for split in splits if split != "train"]
    only = get_settings().only_split
    return [only] if only in names else names
