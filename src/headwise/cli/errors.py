"""A user's mistake is one line, where tyro draws a box."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from headwise.errors import UserError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turns tyro's exit on wrong arguments into a UserError; its exit after help stays an exit."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            yield
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(unboxed(box.getvalue())) from None


def unboxed(box: str) -> str:
    """The text of a box, drawn in Unicode or ASCII, as one line, without its title and the hints to help.

    >>> print(unboxed('''╭─ Value error ───────────────────╮
    ... │ Error parsing object.inner: N    │
    ... │ must be at least 1, got 0        │
    ... │ ──────────────────────────────── │
    ... │ For full helptext, see ... --help│
    ... ╰──────────────────────────────────╯'''))
    N must be at least 1, got 0
    """
    title, *lines = re.sub(r"\x1b\[[0-9;]*m", "", box).strip().splitlines()
    text = " ".join(line.strip("│|╰╯+ ") for line in lines)
    paragraphs = [" ".join(part.split()) for part in re.split("[─-]{3,}", text)]
    told = [part for part in paragraphs if part and not part.startswith(("For full helptext", "Argument helptext"))]
    # An object's name, unlike an option's, means nothing to users.
    message = re.sub(r"^Error parsing (?!--)\S+: ", "", "; ".join(told))
    return f"missing subcommand: {message}" if "Missing subcommand" in title else message
