"""`headwise studies`: what studies there are, and how they stand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True, kw_only=True)
class Studies:
    """List studies with their state and their best; two of them side by side.

    $ headwise studies
    $ headwise studies studies/2026
    $ headwise studies first second
    $ headwise studies --storage postgresql://me@host/studies
    """

    folders: Positional[Annotated[tuple[Path, ...], arg(metavar="FOLDERS")]] = ()
    """Studies, or folders that hold some; by default this one."""
    storage: Annotated[str | None, arg(metavar="URL")] = None
    """A database of studies."""

    def __call__(self, command: str) -> int:
        from headwise.studies.listing import print_studies

        print_studies(self.folders, self.storage)
        return 0
