"""`headwise train`: from a file of texts, or a named task, to a model with a card."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from headwise.mistakes import Mistake
from headwise.training.settings import Settings, default


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

    def settings(self) -> Settings:
        own = {"out", "config", "force", "resume"}
        given = {name: x for name, x in asdict(self).items() if name not in own}
        source = self.config
        if source is None and self.resume and self.out is not None:
            source = self.out / "run.yaml"
            if not source.is_file():
                raise Mistake(f"--resume: {self.out} holds no run (run.yaml is missing)")
        if source is None:
            return Settings(**given)
        base = asdict(Settings.read(source))
        return Settings(**base | {name: x for name, x in given.items() if x != default(name)})

    def __call__(self, command: str) -> int:
        settings = self.settings()
        from headwise.training import train
        from headwise.training.shown import told

        assert self.out is not None
        told(train(settings, self.out, force=self.force, resume=self.resume))
        return 0
