"""Position-aware self-attention, and guides that regularize attention heads.

Names are imported on first use, because torch and transformers take seconds to import.
"""

import importlib as _importlib
import typing as _typing

from headwise._auto_classes import register_auto_classes as _register_auto_classes
from headwise._scheme_loading import register_scheme_loading as _register_scheme_loading

if _typing.TYPE_CHECKING:
    from headwise import attention, guides, models
    from headwise._version import __version__
    from headwise.attention import (
        Alibi,
        AttentionOutput,
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
        torch_state_dict,
    )
    from headwise.attention.attend import BackendChoice, attend, explain
    from headwise.guidance import Guided, GuidedLoss, GuidedTrainer, guiding
    from headwise.guides import Guide
    from headwise.integrations import (
        FusionReport,
        UnsupportedAttentionError,
        extend_positions,
        from_pretrained,
        fuse_attention,
        fusion_report,
        load_adapter,
        save_adapter,
        scheme_parameters,
        set_window,
        unfuse_attention,
    )
    from headwise.integrations.retrofit import remove_scheme, retrofit

__all__ = [
    "Alibi",
    "AttentionOutput",
    "BackendChoice",
    "DecoderLayer",
    "Disentangled",
    "DistanceAware",
    "EncoderLayer",
    "FusionReport",
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
    "attention",
    "explain",
    "extend_positions",
    "from_pretrained",
    "fuse_attention",
    "fusion_report",
    "guides",
    "guiding",
    "load_adapter",
    "models",
    "remove_scheme",
    "retrofit",
    "save_adapter",
    "scheme_parameters",
    "set_window",
    "torch_state_dict",
    "unfuse_attention",
]

_SUBPACKAGES = ("attention", "guides", "models")

#: The modules of names that are not in `headwise.attention`.
_MODULES = {
    "FusionReport": "headwise.integrations",
    "Guide": "headwise.guides",
    "Guided": "headwise.guidance",
    "GuidedLoss": "headwise.guidance",
    "GuidedTrainer": "headwise.guidance",
    "UnsupportedAttentionError": "headwise.integrations",
    "__version__": "headwise._version",
    "extend_positions": "headwise.integrations",
    "from_pretrained": "headwise.integrations",
    "fuse_attention": "headwise.integrations",
    "fusion_report": "headwise.integrations",
    "guiding": "headwise.guidance",
    "load_adapter": "headwise.integrations",
    "remove_scheme": "headwise.integrations",
    "retrofit": "headwise.integrations",
    "save_adapter": "headwise.integrations",
    "scheme_parameters": "headwise.integrations",
    "set_window": "headwise.integrations",
    "unfuse_attention": "headwise.integrations",
}


def __getattr__(name: str) -> object:
    """Import a name, and keep it, so that later uses do not call this function."""
    if name in _SUBPACKAGES:
        return _importlib.import_module(f"headwise.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'headwise' has no attribute {name!r}")
    value: object = getattr(_importlib.import_module(_MODULES.get(name, "headwise.attention")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_register_auto_classes()
_register_scheme_loading()
