"""`headwise train`: from a file of texts, or a named task, to a model with a card."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro import cli
from tyro.conf import DisallowNone, FlagCreatePairsOff, arg

from headwise.cli.mistakes import in_one_line
from headwise.mistakes import Mistake
from headwise.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Train(Settings):
    """Train a model on your own texts or on a named task, and leave it in a folder with its figures and its card.

    $ headwise train --data reviews.csv --model distance-aware --vectors glove.6B.300d.txt --out runs/reviews
    $ headwise train --data reviews.csv --model bert-base-uncased --guides mdg pdg --out runs/guided
    $ headwise train --data reviews.csv --model bert-base-uncased --retrofit distance-aware --out runs/distance
    $ headwise train --task sst2 --data sst2/ --model plain --out runs/sst2
    $ headwise train --config runs/sst2/run.yaml --out runs/again
    $ torchrun --nproc-per-node 2 -m headwise train --data reviews.csv --out runs/both
    """

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
            raise Mistake("--out FOLDER is missing: where shall the run go?")
        if self.config is None and not self.resume:
            super().__post_init__()

    def __call__(self, command: str) -> int:
        settings = self.settings(shlex.split(command)[2:])
        from headwise.training import train
        from headwise.training.shown import told

        assert self.out is not None
        done = train(settings, self.out, force=self.force, resume=self.resume)
        if os.environ.get("RANK", "0") == "0":
            told(done)
        return 0

    def settings(self, args: Sequence[str]) -> Settings:
        """What was asked for: what a file says, and on top of it the options."""
        given = {field.name: getattr(self, field.name) for field in fields(Settings)}
        if self.config is None and not self.resume:
            return Settings(**given)
        assert self.out is not None
        begun = self.out / "run.yaml"
        if self.resume and not begun.is_file():
            raise Mistake(f"--resume: {self.out} holds no run (run.yaml is missing)")
        base = Settings.read(self.config or begun)
        with in_one_line():
            again = cli(
                Train, args=args, default=Train(out=self.out, **vars(base)), config=(FlagCreatePairsOff, DisallowNone)
            )
        settings = Settings(**{name: getattr(again, name) for name in given})
        if self.resume:
            unchanged(settings.resolved(), Settings.read(begun))
        return settings


def unchanged(asked: Settings, begun: Settings) -> None:
    """A run goes on as it began.

    Raises:
        Mistake: another setting than it began with.
    """
    for field in fields(Settings):
        new, old = getattr(asked, field.name), getattr(begun, field.name)
        if new != old:
            raise Mistake(f"--resume goes on as the run began, with {field.name} {old!r}; it cannot be {new!r} now")
