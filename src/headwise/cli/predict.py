"""`headwise predict`: a model's label beside each row of a file."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Write a file again with the model's label and probabilities beside each row, in the same order.

    $ headwise predict runs/reviews new.csv --out labelled.csv
    $ headwise predict runs/reviews new.jsonl.gz --text body --out labelled.jsonl.gz
    """

    run: Positional[Path]
    """The run's folder."""
    data: Positional[Annotated[Path, arg(metavar="FILE")]]
    """CSV, TSV, JSONL or Parquet, gzipped or not."""
    out: Annotated[Path, arg(metavar="FILE")]
    """What to write; its ending tells the format."""
    text: str | None = None
    """The column of the text; by default the run's."""
    pair: str | None = None
    """The column of the second text."""

    def __call__(self, command: str) -> int:
        from headwise.training import predict

        empty = predict(self.run, self.data, self.out, text=self.text, pair=self.pair)
        if empty:
            print(f"headwise: {empty:,} rows have no text, and got no label", file=sys.stderr)
        print(f"written to {self.out}")
        return 0
