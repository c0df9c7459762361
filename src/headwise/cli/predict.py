"""`headwise predict`: a model's answer beside each row of a file, or its translation of each line."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Write a file again with the model's label and probabilities beside each row, or translate it, in the same order.

    $ headwise predict runs/reviews new.csv --out labelled.csv
    $ headwise predict runs/reviews new.jsonl.gz --text body --out labelled.jsonl.gz
    $ headwise predict runs/en-de new.en --out new.de
    $ cat new.en | headwise predict runs/en-de - --out -
    """

    run: Positional[Path]
    """The run's folder."""
    data: Positional[Annotated[Path, arg(metavar="FILE")]]
    """CSV, TSV, JSONL or Parquet, gzipped or not; for a translator also lines of text, or - for standard input."""
    out: Annotated[Path, arg(metavar="FILE")]
    """What to write; its ending tells the format. A translator also writes to standard output, -."""
    text: str | None = None
    """The column of the text; by default the run's."""
    pair: str | None = None
    """The column of the second text."""
    source: str | None = None
    """The language to translate from, if you want it checked."""
    target: str | None = None
    """The language to translate to, if you want it checked."""
    clip: bool = False
    """Cut sentences that are too long for a translator; otherwise they are an error."""

    def __call__(self, command: str) -> int:
        from headwise.training import predict

        options = {name: getattr(self, name) for name in ("text", "pair", "source", "target")}
        empty = predict(self.run, self.data, self.out, **options, clip=self.clip or None)
        if empty:
            print(f"headwise: {empty:,} rows have no text, and got no answer", file=sys.stderr)
        if str(self.out) != "-":
            print(f"written to {self.out}")
        return 0
