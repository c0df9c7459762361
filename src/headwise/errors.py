"""The exception for errors that the user can correct, and messages of one line."""

#: Largest number of characters of a message. Longer ones, which quote a file, are shortened in the middle.
MAX_LENGTH = 1000


class UserError(ValueError):
    """An error in the user's input. Its message, one line, names the file, line or argument and what was expected.

    The command line prints the message without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(to_one_line(message))


def to_one_line(message: str) -> str:
    r"""Return a message that can be printed: control characters, which files may contain, are escaped.

    >>> to_one_line("no column 'a\x1b[2J'")
    "no column 'a\\x1b[2J'"
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in message)
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH // 2]} … {line[-MAX_LENGTH // 2 + 3 :]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none.

    >>> first_line(OSError("disk full\\nsee the log")), first_line(MemoryError())
    ('disk full', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
