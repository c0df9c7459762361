"""Registration of headwise's model types with transformers' Auto classes.

`import headwise` makes `AutoConfig`, `AutoModel…` and `pipeline()` find these model types, without importing
transformers. If transformers' `AutoConfig` is loaded already, they are registered immediately, otherwise by an import
hook when it is loaded. Each model type is registered with a placeholder that imports `headwise.models` on first use.
"""

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

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
    module = sys.modules.get(AUTO_CONFIG_MODULE)
    if module is not None:
        _register(module)
    else:
        sys.meta_path.insert(0, _AutoConfigFinder())


def _register(module: ModuleType) -> None:
    """Register the placeholders. A failure is logged, because it must not break the import of transformers."""
    try:
        for placeholder in PLACEHOLDERS:
            if placeholder.model_type not in module.CONFIG_MAPPING:
                module.AutoConfig.register(placeholder.model_type, placeholder)
    except Exception:
        logger.warning("headwise's model types were not registered: import headwise.models to use them", exc_info=True)


class _AutoConfigFinder(MetaPathFinder):
    """Import hook that calls `_register` after transformers' `AutoConfig` is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != AUTO_CONFIG_MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


class _RegisteringLoader(Loader):
    """Loads a module with its own loader, and calls `_register` afterwards."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:  # get_source, get_filename, …
        return getattr(self._loader, name)
