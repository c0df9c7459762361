"""Which runs a study has: every method on every task with every seed."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from headwise.errors import UserError
from headwise.studies.methods import OF_SCHEMES, SCHEMES, Method, placed
from headwise.training.core.config import RunConfig
from headwise.training.registry import get_task_type
from headwise.training.text.config import FROM_SCRATCH_ONLY, TextConfig


@dataclass(frozen=True)
class Run:
    """A run of a study: all that it depends on, and what the study calls it."""

    task: str
    method: str
    seed: int
    settings: RunConfig

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it this run and no other of its study."""
        return self.task, self.method, self.seed

    @property
    def place(self) -> Path:
        """Its folder in the study's."""
        return Path("runs", file_name(self.task), file_name(self.method), f"seed-{self.seed}")

    def __str__(self) -> str:
        return f"{self.task}, {self.method}, seed {self.seed}"

    def written(self) -> dict[str, Any]:
        """As a database keeps it."""
        return {"task": self.task, "method": self.method, "seed": self.seed, "settings": self.settings.to_yaml()}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Run":
        return cls(found["task"], found["method"], found["seed"], read_settings(found["settings"]))


@cache  # a study is read again and again
def read_settings(text: str) -> RunConfig:
    found = yaml.safe_load(text)
    return get_task_type(found.get("task")).config_class.from_dict(Path("study"), found)


def runs(bases: Sequence[RunConfig], methods: Sequence[Method], seeds: Iterable[int]) -> list[Run]:
    """All runs of a study, those of one task and seed together.

    Args:
        bases: for each task the settings that its methods share.
        methods: what differs.
        seeds: of splits, initial values, batches and dropout; the same for all methods.

    Raises:
        UserError: a method that a task does not know, or a setting that it cannot have.
    """
    return [
        Run(name_of(base), method.name, seed, settings_of(base, method, seed))
        for base in bases
        for seed in seeds
        for method in methods
    ]


def settings_of(base: RunConfig, method: Method, seed: int) -> RunConfig:
    known = {field.name for field in fields(base)}
    method = placed(method, known)
    for name in method.settings.keys() - known:
        if method.settings[name]:
            raise UserError(f"--methods {method.name}: {name} is no setting of {name_of(base)}")
    own: dict[str, Any] = {name: value for name, value in method.settings.items() if name in known}
    try:
        return replace(base, **unneeded(base, own), **own, seed=seed).resolve_paths()
    except UserError as mistake:
        raise UserError(f"--methods {method.name}: {mistake}") from None


def unneeded(base: RunConfig, own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that all methods share but that mean nothing to this one, such as word vectors to a trained model."""
    settings = {**vars(base), **own}
    names: list[str] = []
    if "none" in (settings.get("scheme"), settings["model"]):
        names += OF_SCHEMES
    if isinstance(base, TextConfig):
        names += () if settings["model"] in SCHEMES else FROM_SCRATCH_ONLY
        names += () if settings["retrofit"] else ("scheme_learning_rate",)
    return {name: base.default_value(name) for name in names if name in settings and name not in own}


def name_of(settings: RunConfig) -> str:
    """What is learnt: a task's name, or the name of the user's file."""
    if settings.task is not None:
        return settings.task
    files: Sequence[str] = settings.data or getattr(settings, "train", ())
    return Path(files[0]).name


def check_data(settings: RunConfig) -> None:
    """Make sure that files are there before many runs look for them.

    Raises:
        UserError: one is not.
    """
    for option in ("data", "train", "dev", "test"):
        for name in getattr(settings, option, ()):
            if not name.startswith("hub:") and not Path(name).exists():
                raise UserError(f"{name}: no such file or folder")


def more_seeds(known: Iterable[Run], seeds: Iterable[int]) -> list[Run]:
    """The runs that all methods of a study lack to have these seeds too."""
    there = {run.key for run in known}
    firsts = {(run.task, run.method): run for run in reversed(list(known))}
    return [
        Run(run.task, run.method, seed, replace(run.settings, seed=seed))
        for seed in seeds
        for run in reversed(firsts.values())
        if (run.task, run.method, seed) not in there
    ]


def file_name(name: str) -> str:
    """A name that any file system takes, another one for every name.

    >>> file_name("bert-base-uncased+mdg=0.1"), file_name("BAAI/bge small")
    ('bert-base-uncased+mdg=0.1', 'BAAI-bge-small-d3df9e')
    """
    safe = re.sub(r"[^\w.+=-]+", "-", name).strip(".-")[:80]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
