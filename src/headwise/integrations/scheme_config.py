"""Schemes in the configuration of a model.

A retrofitted model has an entry `headwise` in its configuration, from which transformers builds it with its schemes
(see `headwise._scheme_loading`):

    {"scheme": "DistanceAware",
     "options": {"rectify": false, "w_std": 0.0},
     "layers": {"encoder.layer.0.attention.self": {"heads": 12, "head_dim": 64}, …}}

The names of layers are those in the base model, so that models with and without a head can be loaded.
"""

import json
from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from headwise._compat import keep_in_float32
from headwise._scheme_loading import ATTN_IMPLEMENTATION, CONFIG_ENTRY, FUSION, SCHEME
from headwise.attention import Scheme, schemes
from headwise.integrations.model_utils import execution_device
from headwise.integrations.scheme_layers import attach_scheme, layers_with_scheme

#: headwise's own scheme classes by class name.
SCHEMES: dict[str, type[Scheme]] = {scheme.__name__: scheme for scheme in schemes.SCHEMES.values()}


class LayerSizes(TypedDict):
    """The sizes of one attention layer."""

    heads: int
    head_dim: int


class SchemeConfig(TypedDict):
    """The entry of a model's configuration that describes its schemes."""

    scheme: str
    options: dict[str, Any]
    layers: dict[str, LayerSizes]


def scheme_name(scheme: type[Scheme]) -> str:
    """Return the name of a scheme class in configurations: with its module if it is not one of headwise."""
    is_ours = SCHEMES.get(scheme.__name__) is scheme
    return scheme.__name__ if is_ours else f"{scheme.__module__}.{scheme.__qualname__}"


def find_scheme_class(name: str) -> type[Scheme]:
    """Return the scheme class with a name. A class that is not one of headwise must have been imported.

    Raises:
        ValueError: there is no such class.
    """
    if name in SCHEMES:
        return SCHEMES[name]
    found = [scheme for scheme in _subclasses(Scheme) if scheme_name(scheme) == name]
    if found:
        return found[-1]  # a notebook cell that runs again defines the class again
    if "." not in name:
        raise ValueError(f"scheme must be a Scheme class or one of {', '.join(SCHEMES)}; got {name!r}")
    module, _, class_name = name.rpartition(".")
    raise ValueError(
        f"the scheme {name} is not one of headwise's own, and the class is not defined: import {class_name} from "
        f"{module} first"
    )


def _subclasses(scheme: type[Scheme]) -> list[type[Scheme]]:
    return [x for subclass in scheme.__subclasses__() for x in (subclass, *_subclasses(subclass))]


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError if an option cannot be saved in `config.json`, or is `heads` or `head_dim`."""
    for name, value in options.items():
        if name in schemes.SIZES:
            raise TypeError(f"{name} is that of the model and cannot be an option")
        try:
            json.dumps(value)
        except TypeError:
            raise TypeError(
                f"{name} must be a number, string, boolean, list or dict, because it is saved in config.json; "
                f"got {value!r}"
            ) from None


def build_schemes(model: PreTrainedModel, config: SchemeConfig) -> list[tuple[nn.Module, Scheme]]:
    """Build the schemes of a model's layers, without adding them. Layers that the model does not have are left out."""
    scheme_class = find_scheme_class(config["scheme"])
    built = []
    for name, sizes in config["layers"].items():
        layer = find_layer(model, name)
        if layer is None:
            continue
        parameter = next(layer.parameters())
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        scheme = schemes.make_scheme(scheme_class, **sizes, **config["options"])
        built.append((layer, scheme.to(execution_device(layer), dtype)))
    return built


def find_layer(model: PreTrainedModel, name: str) -> nn.Module | None:
    """Return the layer with a name in the base model, or None."""
    for root in dict.fromkeys((model.base_model, model)):
        try:
            return root.get_submodule(name)
        except AttributeError:
            pass
    return None


def layer_names(model: PreTrainedModel) -> dict[nn.Module, str]:
    """Return the names of all modules, in the base model for those that it contains."""
    return {module: name for root in (model, model.base_model) for name, module in root.named_modules()}


def attach_from_config(model: PreTrainedModel) -> None:
    """Add the schemes that a model's configuration describes, if they are not there yet.

    transformers builds models from the inside out, so that the base model may have the schemes already. Their
    parameters are loaded in float32 if the model is in half precision.
    """
    config: SchemeConfig = getattr(model.config, CONFIG_ENTRY)
    for layer, scheme in build_schemes(model, config):
        if SCHEME not in layer._modules:
            attach_scheme(layer, scheme)
    if layers_with_scheme(model):
        keep_in_float32(model, SCHEME)
    set_scheme_config(model.config, config)


def get_scheme_config(config: PreTrainedConfig) -> SchemeConfig | None:
    """Return the entry of a configuration that describes schemes, or None."""
    entry: SchemeConfig | None = getattr(config, CONFIG_ENTRY, None)
    return entry


def set_scheme_config(config: Any, scheme_config: SchemeConfig) -> None:
    """Describe the schemes in a configuration, such that transformers refuses to load it without headwise."""
    setattr(config, CONFIG_ENTRY, scheme_config)
    config.attn_implementation = ATTN_IMPLEMENTATION
    _add_fusion(config)


def remove_scheme_config(config: Any) -> None:
    """Remove the description of schemes from a configuration."""
    for name in (CONFIG_ENTRY, "attn_implementation"):
        config.__dict__.pop(name, None)
    _remove_fusion(config)


def mark_config(model: PreTrainedModel) -> None:
    """Make transformers refuse to load a model with schemes without headwise, whichever of its parts has them.

    A part has its own configuration, such as the encoder of an `EncoderDecoderModel`.
    """
    if layers_with_scheme(model):
        _add_fusion(model.config)
    elif get_scheme_config(model.config) is None:
        _remove_fusion(model.config)


def _add_fusion(config: Any) -> None:
    config.fusion_config = {**(getattr(config, "fusion_config", None) or {}), FUSION: False}


def _remove_fusion(config: Any) -> None:
    fusions = {name: x for name, x in (getattr(config, "fusion_config", None) or {}).items() if name != FUSION}
    if fusions:
        config.fusion_config = fusions
    else:
        config.__dict__.pop("fusion_config", None)
