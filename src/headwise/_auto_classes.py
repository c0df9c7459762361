"""Registration of headwise's model types with transformers' Auto classes.

`import headwise` makes `AutoConfig`, `AutoModel…` and `pipeline()` find these model types, without importing
transformers (see `_import_hooks`). Each model type is registered with a placeholder that imports `headwise.models` on
first use.
"""

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from headwise._import_hooks import call_after_import

AUTO_CONFIG_MODULE = "transformers.models.auto.configuration_auto"

logger = logging.getLogger(__name__)


class _PlaceholderType(type):
    """The type of placeholders, which behave like the configuration class of their model type.

    Importing `headwise.models` replaces them in transformers' mapping by the classes themselves.
    """

    model_type: str

    def _load(cls) -> Any:
        try:
            import_module("headwise.models")
            config_class = sys.modules[AUTO_CONFIG_MODULE].CONFIG_MAPPING[cls.model_type]
        except Exception as error:
            raise ImportError(
                f"the model type {cls.model_type!r} needs headwise.models, which could not be imported: {error}"
            ) from error
        if config_class is cls:
            raise ImportError(f"the model type {cls.model_type!r} was used while headwise.models was being imported")
        return config_class

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._load()(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # looking at a placeholder does not import headwise.models
            raise AttributeError(name)
        return getattr(cls._load(), name)


class EncoderConfigPlaceholder(metaclass=_PlaceholderType):
    model_type = "headwise"


class RecommenderConfigPlaceholder(metaclass=_PlaceholderType):
    model_type = "headwise-recommender"


class TranslatorConfigPlaceholder(metaclass=_PlaceholderType):
    model_type = "headwise-translator"


PLACEHOLDERS = (EncoderConfigPlaceholder, RecommenderConfigPlaceholder, TranslatorConfigPlaceholder)


def register_auto_classes() -> None:
    """Register the model types with transformers, now or when its `AutoConfig` is loaded."""
    call_after_import(AUTO_CONFIG_MODULE, _register)


def _register(module: ModuleType) -> None:
    """Register the placeholders. A failure is logged, because it must not break the import of transformers."""
    try:
        for placeholder in PLACEHOLDERS:
            if placeholder.model_type not in module.CONFIG_MAPPING:
                module.AutoConfig.register(placeholder.model_type, placeholder)
    except Exception:
        logger.warning("headwise's model types were not registered: import headwise.models to use them", exc_info=True)
