"""`headwise inspect`: what heads look at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from headwise.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """See what the heads of up to four models look at: a page that opens from disk, figures and tables.

    $ headwise inspect runs/reviews --text "A warm and funny film." --out page.html
    $ headwise inspect runs/plain runs/mdg runs/pdg runs/both --data reviews.csv --rows 3 7-9 --out inspected
    $ headwise inspect runs/seed-0 runs/seed-1 runs/seed-2 --out learned
    $ headwise inspect bert-base-uncased --text "The cat sat." "It slept." --out page.html
    """

    models: Positional[Annotated[tuple[str, ...], arg(metavar="MODEL [MODEL ...]")]]
    """Up to four: a run's folder, or a Hugging Face model's folder or name."""
    out: Annotated[Path, arg(metavar="FOLDER|PAGE.html")]
    """A folder for the page, figures (PNG and SVG) and tables; or a page alone."""
    text: Annotated[tuple[str, ...], arg(metavar="TEXT [TEXT ...]")] = ()
    """What to look at. Without a text or a file: figures of what distance-aware heads have learned, of any number of
    runs; those that differ in their seed alone share their line."""
    pair: Annotated[tuple[str, ...], arg(metavar="TEXT [TEXT ...]")] = ()
    """The second text of each, for models that read two."""
    data: Annotated[Path | None, arg(metavar="FILE")] = None
    """A file of texts (CSV, TSV, JSONL or Parquet, gzipped or not): statistics over all rows, some rows to look at."""
    columns: Annotated[tuple[str, ...], arg(metavar="NAME [NAME]")] = ()
    """The file's column of the text, and of the second text; by default found by their names."""
    rows: Annotated[tuple[str, ...], arg(metavar="ROW [ROW ...]")] = ()
    """Which rows to look at, from 1, such as 3 or 7-9; by default the first four."""
    force: bool = False
    """Replace what is there."""

    def __call__(self, command: str) -> int:
        if self.pair and len(self.pair) != len(self.text):
            raise UserError(f"--pair: {len(self.pair)} second texts for {len(self.text)} first ones")
        from headwise.training.inspect import inspect

        texts = list(zip(self.text, self.pair, strict=True)) if self.pair else [(text,) for text in self.text]
        done = inspect(
            self.models,
            self.out,
            texts=texts,
            data=self.data,
            columns=self.columns,
            rows=self.rows,
            force=self.force,
        )
        print(f"written to {self.out}; open {done.page} in a browser" if done.viewer else f"written to {done.page}")
        return 0
