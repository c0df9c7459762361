"""Names of models: schemes, directories, and models on the hub."""

from pathlib import Path


def is_directory_name(name: str) -> bool:
    """Return whether a model's name can only be that of a directory. Models on the hub are NAME or OWNER/NAME.

    >>> is_directory_name("./runs/reviews"), is_directory_name("/models/bert"), is_directory_name("runs/2026/reviews")
    (True, True, True)
    >>> is_directory_name("bert-base-uncased"), is_directory_name("no-such-owner/bert")
    (False, False)
    """
    path = Path(name)
    return (
        path.is_absolute()
        or name.startswith((".", "~"))
        or name.endswith("/")
        or len(path.parts) > 2
        or (len(path.parts) == 2 and Path(path.parts[0]).is_dir())
    )
