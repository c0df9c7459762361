"""Kinds of runs. A task may have settings and a room of its own; all others are texts with labels.

A new kind is a class of settings, a room that trains, evaluates and predicts, and a line here.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from headwise.errors import UserError
from headwise.training.core.config import RunConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.text.config import TextConfig
from headwise.training.translation.config import TranslationConfig


@dataclass(frozen=True)
class TaskType:
    """A kind of run.

    Args:
        settings: what it is asked.
        home: the package that does it, imported when it is needed: `train.run_training(settings, out, resume=)`,
            `evaluate.evaluate(run, data, **options)`, `predict.predict(run, data, out, **options)`,
            `inference.open_inspected(run, name)`.
    """

    settings: type[RunConfig]
    home: str

    def part(self, name: str) -> Any:
        return import_module(f"{self.home}.{name}")


TEXTS = TaskType(TextConfig, "headwise.training.text")

#: Tasks that are of another kind.
OTHERS: dict[str, TaskType] = {
    "mind": TaskType(RecommendationConfig, "headwise.training.recommendation"),
    "translation": TaskType(TranslationConfig, "headwise.training.translation"),
}


def get_task_type(task: str | None) -> TaskType:
    """The kind of a task's runs."""
    return OTHERS.get(task or "", TEXTS)


def load_config(path: Path) -> RunConfig:
    """The settings of a `run.yaml`.

    Raises:
        UserError: the file is not there, is no YAML, or holds what is no setting.
    """
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(f"{path}{'' if mark is None else f', line {mark.line + 1}'}: not YAML") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected settings, a name and a value on each line")
    task = found.get("task")
    return get_task_type(task if isinstance(task, str) else None).settings.from_dict(path, found)
