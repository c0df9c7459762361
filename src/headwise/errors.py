"""What a user did wrong, as every room tells it and the command line prints it."""


class UserError(ValueError):
    """What the user should do differently, in one line: which file, line or argument, and what was expected."""
