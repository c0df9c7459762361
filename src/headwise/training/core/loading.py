"""Models of runs, and of folders that were given: loaded, or a mistake."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.errors import UserError
from headwise.training.core.callbacks import quiet_libraries


@contextmanager
def loadable(place: Path | str, what: str = "its model cannot be loaded") -> Iterator[None]:
    """Libraries raise anything where a folder's files are damaged, or are not what their names say."""
    try:
        with quiet_libraries():
            yield
    except UserError:
        raise
    except Exception as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{place}: {what} ({told})") from None
