"""The exception for errors that the user can correct."""


class UserError(ValueError):
    """An error in the user's input. Its message, one line, names the file, line or argument and what was expected.

    The command line prints the message without a traceback.
    """
