"""Names of models: schemes, directories, and models on the hub."""

from pathlib import Path

from headwise._scheme_loading import CONFIG_ENTRY
from headwise.errors import UserError
from headwise.small_files import read_json

#: Classes of schemes without trainable parameters; the slopes of Alibi can be trained.
FIXED_CLASSES = ("Plain", "Alibi", "Rotary")


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


def check_directory(name: str) -> None:
    """Check that a model exists if its name can only be that of a directory.

    Raises:
        UserError: it does not exist.
    """
    if not Path(name).exists() and is_directory_name(name):
        raise UserError(f"{name}: no such directory; expected a headwise run or a Hugging Face model")


def may_have_scheme(model: str) -> bool:
    """Return whether a model may have been retrofitted with a scheme that has trainable parameters.

    This is known of directories only. One that is gone may have had a scheme: runs that started from it are still used.
    """
    path = Path(model, "config.json")
    if not path.is_file():
        return is_directory_name(model)
    try:
        scheme = read_json(path).get(CONFIG_ENTRY) or {}
        is_fixed = scheme.get("scheme") in FIXED_CLASSES and not scheme["options"].get("learned")
        return "scheme" in scheme and not is_fixed
    except (UserError, AttributeError, KeyError, TypeError):  # loading the model reports it
        return True
