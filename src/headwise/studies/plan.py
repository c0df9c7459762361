"""Runs of a study: every method on every task with every seed, before (`Run`) and after training (`Result`)."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.small_files import parse_yaml
from headwise.studies.methods import SCHEME_OPTIONS, SCHEMES, Method, use_scheme_option
from headwise.training.core.config import RunConfig
from headwise.training.registry import get_task_type
from headwise.training.text.config import FROM_SCRATCH_ONLY, GUIDE_OPTIONS, TextConfig, is_automatic


@dataclass(frozen=True)
class Run:
    """A planned run of a study.

    Args:
        task: a task's name, or the name of the user's file.
        method: the method's name.
        seed: the seed.
        config: the complete configuration of the run.
    """

    task: str
    method: str
    seed: int
    config: RunConfig

    @property
    def key(self) -> tuple[str, str, int]:
        """Task, method and seed, which identify the run in its study."""
        return self.task, self.method, self.seed

    @property
    def relative_dir(self) -> Path:
        """The run's directory, relative to the study's."""
        return Path("runs", safe_file_name(self.task), safe_file_name(self.method), f"seed-{self.seed}")

    def __str__(self) -> str:
        return f"{self.task}, {self.method}, seed {self.seed}"

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes that the study's database stores."""
        return {"task": self.task, "method": self.method, "seed": self.seed, "config": self.config.to_yaml()}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> "Run":
        """Return the run with these database attributes."""
        task, method, seed = attributes["task"], attributes["method"], attributes["seed"]
        if not (isinstance(task, str) and isinstance(method, str) and type(seed) is int):
            raise TypeError("a task, a method or a seed of a run has another type")
        return cls(task, method, seed, parse_config(attributes["config"]))


@dataclass(frozen=True)
class Result:
    """A finished run of a study.

    Args:
        task: a task's name, or the name of the user's file.
        method: the method's name, such as "plain" or "bert+mdg".
        seed: the seed.
        run_dir: the run's directory, with run.yaml, metrics.json and predictions.parquet.
        metrics: the content of metrics.json.
    """

    task: str
    method: str
    seed: int
    run_dir: Path
    metrics: dict[str, Any]


@cache  # the same trials are parsed again at every poll
def parse_config(text: str) -> RunConfig:
    """Parse the YAML of a configuration."""
    values = parse_yaml(text, "study")
    return get_task_type(values.get("task")).config_class.from_dict(Path("study"), values)


def plan_runs(base_configs: Sequence[RunConfig], methods: Sequence[Method], seeds: Iterable[int]) -> list[Run]:
    """Return all runs of a study, ordered by task, then seed, then method.

    Args:
        base_configs: for each task, the configuration that its methods share.
        methods: the methods.
        seeds: seeds of splits, initialization, batches and dropout; the same for all methods.

    Raises:
        UserError: a method has an option that a task does not have, or an invalid value.
    """
    return [
        Run(task_name(base), method.name, seed, build_config(base, method, seed))
        for base in base_configs
        for seed in seeds
        for method in methods
    ]


def build_config(base: RunConfig, method: Method, seed: int) -> RunConfig:
    """Return the configuration of a method's run.

    Raises:
        UserError: the method has an option that the task does not have, or an invalid value.
    """
    option_names = {field.name for field in fields(base)}
    method = use_scheme_option(method, option_names)
    for name in method.overrides.keys() - option_names:
        if method.overrides[name]:
            raise UserError(f"--methods {method.name}: {task_name(base)} has no option {name}")
    overrides: dict[str, Any] = {name: value for name, value in method.overrides.items() if name in option_names}
    try:
        return replace(base, **reset_unused_options(base, overrides), **overrides, seed=seed).resolve_paths()
    except UserError as error:
        raise UserError(f"--methods {method.name}: {error}") from None


def reset_unused_options(base: RunConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return default values for shared options that have no effect on a method, such as word vectors on BERT."""
    options = {**vars(base), **overrides}
    unused: list[str] = []
    if "none" in (options.get("scheme"), options["model"]):
        unused += SCHEME_OPTIONS
    if isinstance(base, TextConfig):
        unused += () if options["model"] in SCHEMES else FROM_SCRATCH_ONLY
        unused += () if options["guides"] else GUIDE_OPTIONS
        unused += () if any(map(is_automatic, options["guides"])) else ("guide_share",)
    defaults = {name: base.default_value(name) for name in unused if name in options and name not in overrides}
    without_rate = replace(base, **{**defaults, **overrides, "scheme_learning_rate": None})
    if "scheme_learning_rate" not in overrides and not without_rate.has_scheme_parameters:
        defaults["scheme_learning_rate"] = None
    return defaults


def task_name(config: RunConfig) -> str:
    """Return the name of the task, or of the user's first file."""
    if config.task is not None:
        return config.task
    files: Sequence[str] = config.data or getattr(config, "train", ()) or getattr(config, "queries", ())
    return Path(files[0]).name


def check_data(config: RunConfig) -> None:
    """Check that all data files exist before many runs try to read them.

    Raises:
        UserError: a file is missing.
    """
    for option in ("data", "train", "dev", "test", "queries", "documents", "relevance"):
        for name in getattr(config, option, ()):
            if not name.startswith("hub:") and not Path(name).exists():
                raise UserError(f"{name}: no such file or directory")


def plan_more_seeds(runs: Sequence[Run], seeds: Iterable[int]) -> list[Run]:
    """Return the runs that are missing for all methods of a study to have these seeds."""
    keys = {run.key for run in runs}
    first_runs = {(run.task, run.method): run for run in reversed(runs)}
    return [
        Run(run.task, run.method, seed, replace(run.config, seed=seed))
        for seed in seeds
        for run in reversed(first_runs.values())
        if (run.task, run.method, seed) not in keys
    ]


def safe_file_name(name: str) -> str:
    """Return a valid file name that is different for every name.

    >>> safe_file_name("bert-base-uncased+mdg=0.1"), safe_file_name("BAAI/bge small")
    ('bert-base-uncased+mdg=0.1', 'BAAI-bge-small-d3df9e')
    """
    safe = re.sub(r"[^\w.+=-]+", "-", name).strip(".-")[:80]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
