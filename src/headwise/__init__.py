"""Position-aware self-attention, and guides that regularize attention heads."""

import importlib as _importlib
import typing as _typing
from importlib import metadata as _metadata

from headwise._auto_classes import register_auto_classes as _register_auto_classes
from headwise._scheme_loading import register_scheme_loading as _register_scheme_loading
from headwise.attention import (
    Alibi,
    AttentionOutput,
    BackendChoice,
    DecoderLayer,
    Disentangled,
    DistanceAware,
    EncoderLayer,
    MultiheadAttention,
    Plain,
    RelativePositions,
    Rotary,
    Scheme,
    SchemeTerms,
    T5Bias,
    Tener,
    TransformerXL,
    attend,
    explain,
)

if _typing.TYPE_CHECKING:
    from headwise import guides, models
    from headwise.guidance import Guided, GuidedLoss, GuidedTrainer, guiding
    from headwise.guides import Guide
    from headwise.integrations import (
        UnsupportedAttentionError,
        from_pretrained,
        load_adapter,
        remove_scheme,
        retrofit,
        save_adapter,
        scheme_parameters,
    )

try:
    __version__ = _metadata.version("headwise")
except _metadata.PackageNotFoundError:
    __version__ = "0+not-installed"

__all__ = [
    "Alibi",
    "AttentionOutput",
    "BackendChoice",
    "DecoderLayer",
    "Disentangled",
    "DistanceAware",
    "EncoderLayer",
    "Guide",
    "Guided",
    "GuidedLoss",
    "GuidedTrainer",
    "MultiheadAttention",
    "Plain",
    "RelativePositions",
    "Rotary",
    "Scheme",
    "SchemeTerms",
    "T5Bias",
    "Tener",
    "TransformerXL",
    "UnsupportedAttentionError",
    "__version__",
    "attend",
    "explain",
    "from_pretrained",
    "guides",
    "guiding",
    "load_adapter",
    "models",
    "remove_scheme",
    "retrofit",
    "save_adapter",
    "scheme_parameters",
]

#: Names that need transformers. They are imported on first use, because transformers takes seconds to import.
_LAZY_NAMES = {
    "Guide": "headwise.guides",
    "Guided": "headwise.guidance",
    "GuidedLoss": "headwise.guidance",
    "GuidedTrainer": "headwise.guidance",
    "UnsupportedAttentionError": "headwise.integrations",
    "from_pretrained": "headwise.integrations",
    "guiding": "headwise.guidance",
    "load_adapter": "headwise.integrations",
    "remove_scheme": "headwise.integrations",
    "retrofit": "headwise.integrations",
    "save_adapter": "headwise.integrations",
    "scheme_parameters": "headwise.integrations",
}
_LAZY_PACKAGES = ("guides", "models")


def __getattr__(name: str) -> object:
    if name in _LAZY_PACKAGES:
        return _importlib.import_module(f"headwise.{name}")
    if name in _LAZY_NAMES:
        return getattr(_importlib.import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'headwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


_register_auto_classes()
_register_scheme_loading()
