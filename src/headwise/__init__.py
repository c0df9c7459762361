"""Self-attention with learned distance and relative positions, and guides for attention heads."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from headwise.attention import (
    BackendChoice,
    DecoderLayer,
    DistanceAware,
    EncoderLayer,
    MultiheadAttention,
    Plain,
    RelativePositions,
    Scheme,
    Tener,
    TransformerXL,
    attend,
    explain,
)

if TYPE_CHECKING:
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
    __version__ = version("headwise")
except PackageNotFoundError:
    __version__ = "0+not-installed"

__all__ = [
    "BackendChoice",
    "DecoderLayer",
    "DistanceAware",
    "EncoderLayer",
    "Guide",
    "Guided",
    "GuidedLoss",
    "GuidedTrainer",
    "MultiheadAttention",
    "Plain",
    "RelativePositions",
    "Scheme",
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

#: Names that need transformers, imported on first use because that takes seconds.
_LAZY = {
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


def __getattr__(name: str) -> Any:
    if name in ("guides", "models"):
        return import_module(f"headwise.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'headwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
