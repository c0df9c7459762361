"""Kinds of runs. A task may have settings and a room of its own; all others are texts with labels.

A new kind is a class of settings, a room that trains, evaluates and predicts, and a line here.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from headwise.mistakes import Mistake
from headwise.training.recommendation.settings import Recommendation
from headwise.training.settings import Common
from headwise.training.texts.settings import Settings
from headwise.training.translation.settings import Translation


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Args:
        settings: what it is asked.
        home: the package that does it, imported when it is needed: `running.run(settings, out, resume=)`,
            `evaluating.evaluate(run, data, **options)`, `predicting.predict(run, data, out, **options)`,
            `trained.subject(run, name)`.
    """

    settings: type[Common]
    home: str

    def part(self, name: str) -> Any:
        return import_module(f"{self.home}.{name}")


TEXTS = Kind(Settings, "headwise.training.texts")

#: Tasks that are of another kind.
OTHERS: dict[str, Kind] = {
    "mind": Kind(Recommendation, "headwise.training.recommendation"),
    "translation": Kind(Translation, "headwise.training.translation"),
}


def kind_of(task: str | None) -> Kind:
    """The kind of a task's runs."""
    return OTHERS.get(task or "", TEXTS)


def read_settings(path: Path) -> Common:
    """The settings of a `run.yaml`.

    Raises:
        Mistake: the file is not there, is no YAML, or holds what is no setting.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Mistake(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise Mistake(f"{path}{'' if mark is None else f', line {mark.line + 1}'}: not YAML") from None
    if not isinstance(found, dict):
        raise Mistake(f"{path}: expected settings, a name and a value on each line")
    task = found.get("task")
    return kind_of(task if isinstance(task, str) else None).settings.restored(path, found)
