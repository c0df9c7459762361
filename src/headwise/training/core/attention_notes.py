"""What the configuration of a pretrained model says about its attention: the position scheme and the window."""

from collections.abc import Mapping
from typing import Any

from headwise.errors import UserError
from headwise.integrations import scheme_parameters, unwrap_model
from headwise.integrations.scheme_config import get_scheme_config
from headwise.integrations.window_attention import CONFIG_ENTRY as WINDOW
from headwise.models.configuration import SCHEMES


def describe_attention(model_config: Any) -> str | None:
    """Return the attention of a retrofitted model, such as `distance-aware attention`; None without a scheme.

    Args:
        model_config: the model's configuration.
    """
    entry: Any = get_scheme_config(model_config)
    if entry is None:
        return None
    name = str(entry.get("scheme") if isinstance(entry, Mapping) else entry)  # a damaged file can have any value
    names = {scheme.__name__: name for name, scheme in SCHEMES.items() if name != "none"}
    return f"{names.get(name, name)} attention"


def describe_scheme(model: Any, *, frozen: bool = False) -> list[str]:
    """Return a note on the scheme that a model was loaded with; none without a scheme.

    Args:
        model: the model.
        frozen: whether the parameters of the scheme are not trained.
    """
    model_config = unwrap_model(model).config
    attention = describe_attention(model_config)
    if attention is None:
        return []
    num_layers, count = len(model_config.headwise["layers"]), sum(p.numel() for p in scheme_parameters(model))
    layers = "1 layer" if num_layers == 1 else f"{num_layers} layers"
    return [f"model has {attention} in {layers}: {count:,} parameters{', not trained' if frozen else ''}"]


def describe_window(model: Any) -> list[str]:
    """Return a note on the sliding window of a model, set now or loaded with it; none without a window."""
    entry: Any = getattr(unwrap_model(model).config, WINDOW, None)
    if entry is None:
        return []
    before, after = entry["window"]
    size = f"{before} tokens before and after" if before == after else f"{before} tokens before and {after} after"
    return [f"attention window: {size}, {entry['global_tokens']} global"]


def check_retrofit(retrofit: str | None, model: str, model_config: Any) -> None:
    """Check that a model that gets a scheme has none.

    Raises:
        UserError: it has one.
    """
    attention = describe_attention(model_config)
    if retrofit is not None and attention is not None:
        raise UserError(
            f"--retrofit {retrofit}: {model} already has {attention}; leave out --retrofit to train it further, or "
            "name the original model"
        )
