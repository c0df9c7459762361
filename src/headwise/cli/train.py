"""`headwise train`: from a file of texts, or a named task, to a model with a card."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro import cli
from tyro.conf import DisallowNone, FlagCreatePairsOff, arg

from headwise.cli.errors import in_one_line
from headwise.errors import UserError
from headwise.training.core.config import RunConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.registry import get_task_type, load_config
from headwise.training.text.config import TextConfig
from headwise.training.translation.config import TranslationConfig


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `headwise train` asks besides a run's settings, which a class of commands inherits after it."""

    if TYPE_CHECKING:  # no field: it would hide what a kind's settings say about it
        task: str | None

    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run's folder: settings, model, tokenizer, figures, predictions and card."""
    config: Annotated[Path | None, arg(metavar="FILE")] = None
    """The run.yaml of another run, to do it again; options beside it win."""
    force: bool = False
    """Replace a run that is in the folder."""
    resume: bool = False
    """Go on with an unfinished run in the folder."""

    def __post_init__(self) -> None:
        if self.out is None:
            raise UserError("--out FOLDER is missing: where shall the run go?")
        if self.config is None and not self.resume:
            super().__post_init__()  # type: ignore[misc]

    def __call__(self, command: str) -> int:
        settings = self.settings(shlex.split(command)[2:])
        from headwise.training import train
        from headwise.training.core.printing import print_result

        assert self.out is not None
        done = train(settings, self.out, force=self.force, resume=self.resume)
        if os.environ.get("RANK", "0") == "0":
            print_result(done)
        return 0

    def settings(self, args: Sequence[str]) -> RunConfig:
        """What was asked for: what a file says, and on top of it the options."""
        made = get_task_type(self.task).config_class
        if self.config is None and not self.resume:
            return made(**given(self, made))
        assert self.out is not None
        begun = self.out / "run.yaml"
        if self.resume and not begun.is_file():
            raise UserError(f"--resume: {self.out} holds no run (run.yaml is missing)")
        base = load_config(self.config or begun)
        options: Any = command_for(base.task)
        with in_one_line():
            again = cli(
                options,
                args=args,
                default=options(out=self.out, **vars(base)),
                config=(FlagCreatePairsOff, DisallowNone),
            )
        made = get_task_type(again.task).config_class
        settings = made(**given(again, made))
        if self.resume:
            unchanged(settings.resolve_paths(), load_config(begun))
        return settings


@dataclass(frozen=True, kw_only=True)
class Train(Options, TextConfig):
    """Train a model on your own texts or on a named task, and leave it in a folder with its figures and its card.

    $ headwise train --data reviews.csv --model distance-aware --vectors glove.6B.300d.txt --out runs/reviews
    $ headwise train --data reviews.csv --model bert-base-uncased --guides mdg pdg --out runs/guided
    $ headwise train --data reviews.csv --model bert-base-uncased --retrofit distance-aware --out runs/distance
    $ headwise train --task sst2 --data sst2/ --model plain --out runs/sst2
    $ headwise train --config runs/sst2/run.yaml --out runs/again
    $ torchrun --nproc-per-node 2 -m headwise train --data reviews.csv --out runs/both
    """


@dataclass(frozen=True, kw_only=True)
class TrainMind(Options, RecommendationConfig):
    """Train a recommender of news on a click log in MIND's layout, and leave it in a folder with its figures.

    $ headwise train --task mind --data MINDsmall --vectors glove.6B.300d.txt --out runs/mind
    $ headwise train --task mind --data MINDsmall --model none --news-scheme rpr --out runs/rpr
    $ headwise train --task mind --data MINDlarge --model bert-base-uncased --pooling recent --out runs/bert
    """


@dataclass(frozen=True, kw_only=True)
class TrainTranslation(Options, TranslationConfig):
    """Train a translator on pairs of sentences, and leave it in a folder with its figures and its card.

    $ headwise train --task translation --data multi30k --source en --target de --model small --out runs/en-de
    $ headwise train --task translation --data pairs.tsv --source en --target fr --scheme distance-aware --out runs/fr
    $ headwise train --task translation --data hub:wmt14:de-en --source en --target de --steps 100000 --out runs/wmt
    """


#: The command for tasks whose runs are of another kind, and ask for other settings.
OTHERS: dict[str, type[Options]] = {"mind": TrainMind, "translation": TrainTranslation}


def command_for(task: str | None) -> type[Options]:
    """The command that trains a task."""
    return OTHERS.get(task or "", Train)


def task_in(args: Sequence[str]) -> str | None:
    """The task that arguments name, by themselves or in the file of --config or --out's folder.

    >>> task_in(["train", "--task", "sst2"]), task_in(["train", "--task=sst2"]), task_in(["train"])
    ('sst2', 'sst2', None)
    """
    named = value_of("--task", args)
    config, out = value_of("--config", args), value_of("--out", args)
    path = Path(config) if config else Path(out, "run.yaml") if out and "--resume" in args else None
    return named or (load_config(path).task if path is not None and path.is_file() else None)


def value_of(option: str, args: Sequence[str]) -> str | None:
    for place, found in enumerate(args):
        if found == option and place + 1 < len(args):
            return args[place + 1]
        if found.startswith(f"{option}="):
            return found.partition("=")[2]
    return None


def given(options: Options, settings: type[RunConfig]) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields(settings)}


def unchanged(asked: RunConfig, begun: RunConfig) -> None:
    """A run goes on as it began.

    Raises:
        UserError: another setting than it began with.
    """
    for field in fields(begun):
        new, old = getattr(asked, field.name, None), getattr(begun, field.name)
        if new != old:
            raise UserError(f"--resume goes on as the run began, with {field.name} {old!r}; it cannot be {new!r} now")
