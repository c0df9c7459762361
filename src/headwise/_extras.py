"""The packages that the extras of `pip install 'headwise[…]'` add, and the error for one that is missing."""

from importlib.util import find_spec

from headwise.errors import UserError

_HF = ("accelerate", "huggingface_hub", "safetensors", "tokenizers", "transformers", "yaml")
_TRAIN = (
    *_HF,
    "bm25s",
    "datasets",
    "filelock",
    "jinja2",
    "matplotlib",
    "pyarrow",
    "rich",
    "sacrebleu",
    "scipy",
    "seqeval",
    "sklearn",
    "tqdm",
)

#: The modules that each extra adds to torch and numpy.
EXTRAS = {
    "hf": _HF,
    "inspect": (*_HF, "matplotlib", "rich", "sklearn"),
    "train": _TRAIN,
    "studies": (*_TRAIN, "optuna", "sqlalchemy"),
}


class MissingExtraError(UserError, ModuleNotFoundError):
    """A package that is installed with an extra is missing."""


def require(extra: str, user: str) -> None:
    """Check that the packages of an extra are installed. It looks for them and does not import them.

    Args:
        extra: the extra, such as `hf`.
        user: what needs it, such as `headwise.guides`.

    Raises:
        MissingExtraError: a package is missing.
    """
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        others = len(missing) - 1
        more = f" and {others} other package{'s' if others > 1 else ''}" if others else ""
        name = "transformers" if "transformers" in missing else missing[0]
        raise MissingExtraError(f"{user} needs {name}{more}: pip install 'headwise[{extra}]'")
