"""One run: settings → a trained model in a folder, with its figures and its card."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.training.text.config import TextConfig

if TYPE_CHECKING:
    from headwise.training.run import RunResult, evaluate, predict, train
    from headwise.training.text.inference import TextModel

__all__ = ["RunResult", "TextConfig", "TextModel", "evaluate", "predict", "train"]

_HOMES = {
    "RunResult": "run",
    "train": "run",
    "evaluate": "run",
    "predict": "run",
    "TextModel": "text.inference",
}


def __getattr__(name: str) -> Any:
    """What needs transformers, imported when it is asked for first: that takes seconds."""
    if name in _HOMES:
        return getattr(import_module(f"headwise.training.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'headwise.training' has no attribute {name!r}")
