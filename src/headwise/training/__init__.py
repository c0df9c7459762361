"""Training pipelines: from a configuration to a run directory with a trained model, its metrics and its model card."""

from headwise._extras import require

require("train", __name__)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.training.adaptation.config import AdaptConfig
from headwise.training.text.config import TextConfig

if TYPE_CHECKING:
    from headwise.training.adaptation.run import adapt
    from headwise.training.core.run_dir import RunResult
    from headwise.training.run import evaluate, predict, train
    from headwise.training.text.inference import TextModel

__all__ = ["AdaptConfig", "RunResult", "TextConfig", "TextModel", "adapt", "evaluate", "predict", "train"]

#: Modules of names that need torch and transformers, which take seconds to import.
_LAZY_MODULES = {
    "RunResult": "core.run_dir",
    "TextModel": "text.inference",
    "adapt": "adaptation.run",
    "evaluate": "run",
    "predict": "run",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use."""
    if name in _LAZY_MODULES:
        return getattr(import_module(f"headwise.training.{_LAZY_MODULES[name]}"), name)
    raise AttributeError(f"module 'headwise.training' has no attribute {name!r}")
