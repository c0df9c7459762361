"""Attention layers with a position scheme.

A scheme is a submodule of its layer. The layer gets a configuration of its own, in which the attention implementation
is headwise's, so that `set_attn_implementation` of the model does not drop the scheme.
"""

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from headwise._compat import get_attn_implementation, set_attn_implementation
from headwise._scheme_loading import ATTN_IMPLEMENTATION, SCHEME
from headwise.attention import Scheme
from headwise.integrations.model_utils import UnsupportedAttentionError

#: The attribute of a layer with a scheme that holds the configuration of its model.
_MODEL_CONFIG = "_headwise_model_config"


def attach_scheme(layer: Any, scheme: Scheme) -> None:
    """Add a scheme to an attention layer.

    Raises:
        UnsupportedAttentionError: the layer has no configuration.
    """
    if not isinstance(getattr(layer, "config", None), PreTrainedConfig):
        raise UnsupportedAttentionError(layer, "has no configuration, so it cannot get a position scheme")
    layer.add_module(SCHEME, scheme)
    layer.__dict__[_MODEL_CONFIG] = layer.config
    layer.config = copy.copy(layer.config)
    set_attn_implementation(layer.config, ATTN_IMPLEMENTATION)


def detach_scheme(layer: Any) -> None:
    """Remove the scheme of an attention layer."""
    delattr(layer, SCHEME)
    layer.config = layer.__dict__.pop(_MODEL_CONFIG)


def get_scheme(layer: nn.Module) -> Scheme | None:
    """Return the scheme of a layer, or None. PEFT's `modules_to_save` wraps schemes and trains copies of them."""
    module: Any = layer._modules.get(SCHEME)
    if module is None or isinstance(module, Scheme):
        return module
    is_active = module.active_adapters and not module.disable_adapters
    return module.modules_to_save[module.active_adapters[0]] if is_active else module.original_module  # type: ignore[no-any-return]


def model_config(layer: nn.Module) -> Any:
    """Return the configuration of the model that a layer belongs to."""
    return layer.__dict__.get(_MODEL_CONFIG, getattr(layer, "config", None))


def model_attn_implementation(layer: nn.Module) -> str:
    """Return the attention implementation of the model that a layer belongs to, which builds the masks."""
    return get_attn_implementation(model_config(layer)) or ATTN_IMPLEMENTATION


def layers_with_scheme(model: nn.Module) -> list[nn.Module]:
    """Return the attention layers of a model that have a scheme."""
    return [module for module in model.modules() if SCHEME in module._modules]


def scheme_modules(model: nn.Module) -> Iterator[Scheme]:
    """Return the schemes that `retrofit` added. Those of headwise's own models are not among them."""
    return (scheme for layer in layers_with_scheme(model) if (scheme := get_scheme(layer)) is not None)


def scheme_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that `retrofit` added, for a separate optimizer group."""
    return [parameter for scheme in scheme_modules(model) for parameter in scheme.parameters()]


def all_scheme_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of all schemes of a model: its own ones and those that `retrofit` added."""
    schemes = [module for module in model.modules() if isinstance(module, Scheme)]
    return [parameter for scheme in schemes for parameter in scheme.parameters() if parameter.requires_grad]


def add_scheme_group(optimizer: Any, parameters: Iterable[nn.Parameter], learning_rate: float) -> None:
    """Move the parameters of schemes to a group of the optimizer with its own learning rate, without weight decay."""
    scheme_ids = {id(parameter) for parameter in parameters}
    if not scheme_ids or any(group.get("headwise") for group in optimizer.param_groups):
        return
    moved = [p for group in optimizer.param_groups for p in group["params"] if id(p) in scheme_ids]
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in scheme_ids]
    optimizer.add_param_group({"params": moved, "lr": learning_rate, "weight_decay": 0.0, "headwise": True})
