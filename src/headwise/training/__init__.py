"""One run: settings → a trained model in a folder, with its figures and its card."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.training.texts.settings import Settings

if TYPE_CHECKING:
    from headwise.training.run import Finished, evaluate, predict, train
    from headwise.training.texts.trained import Trained

__all__ = ["Finished", "Settings", "Trained", "evaluate", "predict", "train"]

_HOMES = {
    "Finished": "run",
    "train": "run",
    "evaluate": "run",
    "predict": "run",
    "Trained": "texts.trained",
}


def __getattr__(name: str) -> Any:
    """What needs transformers, imported when it is asked for first: that takes seconds."""
    if name in _HOMES:
        return getattr(import_module(f"headwise.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'headwise.training' has no attribute {name!r}")
