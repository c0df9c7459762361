"""Models of runs, and of folders that were given: loaded, or a mistake."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.mistakes import Mistake
from headwise.training.progress import quieter


@contextmanager
def loadable(place: Path | str, what: str = "its model cannot be loaded") -> Iterator[None]:
    """Libraries raise anything where a folder's files are damaged, or are not what their names say."""
    try:
        with quieter():
            yield
    except Mistake:
        raise
    except Exception as error:
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Mistake(f"{place}: {what} ({told})") from None
