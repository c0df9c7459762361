"""Saving and loading of schemes, with the model or without it."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel

from headwise.integrations.model_utils import unwrap_model
from headwise.integrations.retrofit import add_schemes, remove_scheme
from headwise.integrations.scheme_config import SchemeConfig, find_layer, get_scheme_config
from headwise.integrations.scheme_layers import get_scheme, layers_with_scheme
from headwise.small_files import read_json

ADAPTER_WEIGHTS, ADAPTER_CONFIG = "headwise.safetensors", "headwise.json"


def from_pretrained(path: str | Path, auto_class: Any = AutoModel, **options: Any) -> Any:
    """Load a model that `save_pretrained` saved, with its schemes, from safetensors files.

    This is `auto_class.from_pretrained(path, use_safetensors=True, **options)`. After `import headwise`, transformers'
    own classes and `pipeline` load schemes too.

    Args:
        path: a directory, or a name on the Hugging Face Hub.
        auto_class: the class to load with, such as `AutoModelForSequenceClassification`.
        options: arguments of `auto_class.from_pretrained`.

    Returns:
        What `auto_class.from_pretrained` returns: the model, or with `output_loading_info=True` the model and the
        report.
    """
    return auto_class.from_pretrained(path, **({"use_safetensors": True} | options))


def save_adapter(model: nn.Module, directory: str | Path) -> None:
    """Save the schemes that `retrofit` added, without the model's weights: a few kilobytes."""
    inner = unwrap_model(model)
    config = get_scheme_config(inner.config)
    if config is None or not layers_with_scheme(inner):
        raise ValueError(f"{type(inner).__name__} has no scheme; headwise.retrofit(model, …) adds one")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {
        f"{name}.{parameter}": x.detach().contiguous().cpu()
        for name, scheme in _schemes_by_layer(inner, config).items()
        for parameter, x in scheme.state_dict().items()
    }
    save_file(weights, directory / ADAPTER_WEIGHTS)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapter(model: nn.Module, directory: str | Path) -> nn.Module:
    """Add the schemes that `save_adapter` saved to a model, and return it."""
    directory = Path(directory)
    path = directory / ADAPTER_CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{directory} contains no {ADAPTER_CONFIG}, so it is not an adapter saved by headwise")
    config: SchemeConfig = read_json(path)
    inner = unwrap_model(model)
    if layers_with_scheme(inner):
        raise ValueError(f"{type(inner).__name__} already has a scheme; headwise.remove_scheme(model) removes it")
    weights = load_file(directory / ADAPTER_WEIGHTS)
    add_schemes(model, config)
    try:
        for name, scheme in _schemes_by_layer(inner, config).items():
            prefix = f"{name}."
            scheme.load_state_dict(
                {key.removeprefix(prefix): x for key, x in weights.items() if key.startswith(prefix)}
            )
    except RuntimeError as error:
        remove_scheme(model)
        raise ValueError(f"{directory / ADAPTER_WEIGHTS} does not fit {type(inner).__name__}: {error}") from None
    return model


def _schemes_by_layer(model: Any, config: SchemeConfig) -> dict[str, nn.Module]:
    """Return a model's schemes by the names of their layers in the configuration."""
    layers = {name: find_layer(model, name) for name in config["layers"]}
    schemes = {name: None if layer is None else get_scheme(layer) for name, layer in layers.items()}
    return {name: scheme for name, scheme in schemes.items() if scheme is not None}
