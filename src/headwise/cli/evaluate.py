"""`headwise evaluate`: how good a trained model is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Judge a run's model on its own test split, or on another file with labels.

    $ headwise evaluate runs/reviews
    $ headwise evaluate runs/reviews --data other.csv --out figures.json
    """

    run: Positional[Path]
    """The run's folder."""
    data: Annotated[Path | None, arg(metavar="FILE")] = None
    """A file with labels, or pairs for a translator; by default the run's own test split."""
    text: str | None = None
    """The file's column of the text; by default the run's, or found by its name."""
    pair: str | None = None
    """Its column of the second text."""
    label: str | None = None
    """Its column of the label."""
    source: str | None = None
    """The language to translate from, if you want it checked."""
    target: str | None = None
    """The language to translate to, if you want it checked."""
    clip: bool = False
    """Cut sentences that are too long for a translator; otherwise they are an error."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """Where to write the figures as JSON too."""

    def __call__(self, command: str) -> int:
        from headwise.training import evaluate
        from headwise.training.core.printing import print_evaluation
        from headwise.training.core.run_dir import atomic_write, to_json

        options = {name: getattr(self, name) for name in ("text", "pair", "label", "source", "target")}
        found = evaluate(self.run, self.data, **options, clip=self.clip or None)
        print_evaluation(found)
        if self.out is not None:
            atomic_write(self.out, to_json(found))
        return 0
