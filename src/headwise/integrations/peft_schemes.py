"""Schemes in models with PEFT adapters.

PEFT saves the parameters of its adapters, and the modules that `modules_to_save` of an adapter's configuration names.
"""

import sys
from typing import Any

from torch import nn

from headwise._scheme_loading import SCHEME
from headwise.integrations.model_utils import unwrap_model


def save_schemes_with_adapters(model: nn.Module) -> None:
    """Add the schemes of a PEFT model to the modules that PEFT trains and saves with each of its adapters."""
    for adapters in _adapters(model):
        from peft.utils.other import _set_trainable

        for name, config in adapters.items():
            config.modules_to_save = [*(config.modules_to_save or ()), SCHEME]
            _set_trainable(unwrap_model(model), name, module_names=[SCHEME], inference_mode=config.inference_mode)


def forget_schemes(model: nn.Module) -> None:
    """Remove schemes from the modules that PEFT saves."""
    for adapters in _adapters(model):
        for config in adapters.values():
            config.modules_to_save = [name for name in config.modules_to_save or () if name != SCHEME] or None


def _adapters(model: nn.Module) -> list[dict[str, Any]]:
    """Return the configurations of PEFT's adapters by name, for each part of a model that has some."""
    if "peft" not in sys.modules:
        return []
    found = [getattr(module, "peft_config", None) for module in model.modules()]
    return list({id(x): x for x in found if isinstance(x, dict)}.values())
