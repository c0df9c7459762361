"""One run: settings → a trained model in a folder, with its figures and its card."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.training.settings import Settings

if TYPE_CHECKING:
    from headwise.training.applying import Trained, evaluate, predict
    from headwise.training.run import Finished, train

__all__ = ["Finished", "Settings", "Trained", "evaluate", "predict", "train"]

_HOMES = {"Finished": "run", "train": "run", "Trained": "applying", "evaluate": "applying", "predict": "applying"}


def __getattr__(name: str) -> Any:
    """What needs transformers, imported when it is asked for first: that takes seconds."""
    if name in _HOMES:
        return getattr(import_module(f"headwise.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'headwise.training' has no attribute {name!r}")
