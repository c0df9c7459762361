"""Sliding windows with global tokens in Hugging Face encoders: setting and removing."""

from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from headwise._scheme_loading import ATTN_IMPLEMENTATION
from headwise.integrations.fusion import is_fused
from headwise.integrations.model_utils import NO_INTERFACE, UnsupportedAttentionError, unwrap_model
from headwise.integrations.retrofit import find_attention_layers
from headwise.integrations.scheme_layers import layers_with_scheme
from headwise.integrations.window_attention import CONFIG_ENTRY


def set_window(model: nn.Module, window: int | tuple[int, int] | None, *, global_tokens: int = 1) -> nn.Module:
    """Limit the attention of a pretrained Hugging Face encoder to a sliding window and global tokens.

    Attention then takes time and memory in proportion to the length of the input. Inputs that fit in the window give
    the same outputs as before. The window is saved in the model's configuration; to load the model, headwise must be
    imported. The window needs the attention implementation `headwise`, which this function sets; another implementation
    ignores it. Call it before or after `retrofit` and `extend_positions`. Layers with a window of their own, such as
    those of ModernBERT, keep it.

    Args:
        model: a `PreTrainedModel`, or a module that contains one. It is changed in place.
        window: the number of tokens before and after its own that a token attends to, one number or (before, after);
            None removes the window.
        global_tokens: the number of tokens at the start of the input that attend to all tokens and that all tokens
            attend to. The first token is the one that classifiers of BERT read.

    Returns:
        The model.

    Raises:
        UnsupportedAttentionError: the model's attention does not go through transformers' `AttentionInterface`, or is
            causal.
        ValueError: `window` or `global_tokens` is negative, or the model has fused attention.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        >>> hw.set_window(model, 256, global_tokens=1).config.headwise_window
        {'window': [256, 256], 'global_tokens': 1}
    """
    inner = unwrap_model(model)
    pair = None if window is None else list(window) if isinstance(window, tuple | list) else [window, window]
    values = [*(pair or (0, 0)), global_tokens]
    if len(values) != 3 or any(type(x) is not int or x < 0 for x in values):
        raise ValueError(
            "window must be a number of tokens or (before, after), and global_tokens a number, 0 or more each; got "
            f"{window!r} and {global_tokens!r}"
        )
    if inner.config.is_encoder_decoder or getattr(inner.config, "is_decoder", False):
        raise UnsupportedAttentionError(inner, "is no encoder; set_window is for encoders")
    if pair is not None and is_fused(inner):
        raise ValueError(f"{type(inner).__name__} has fused attention; headwise.unfuse_attention(model) removes it")
    previous = getattr(inner.config, CONFIG_ENTRY, None)
    change_window(inner, None if pair is None else {"window": pair, "global_tokens": global_tokens})
    try:
        find_attention_layers(inner)
    except Exception as error:
        change_window(inner, previous)
        if isinstance(error, UnsupportedAttentionError) and error.reason is None:
            raise UnsupportedAttentionError(inner, f"{NO_INTERFACE}, so it cannot get a window") from None
        raise
    return model


def change_window(model: Any, entry: dict[str, Any] | None) -> None:
    """Set or remove the window in all configurations of a model, and the attention implementation that it needs."""
    modules = [module for module in model.modules() if isinstance(getattr(module, "config", None), PreTrainedConfig)]
    for config in {id(module.config): module.config for module in modules}.values():
        if entry is None:
            config.__dict__.pop(CONFIG_ENTRY, None)
        else:
            setattr(config, CONFIG_ENTRY, dict(entry))
    if entry is not None:
        model.set_attn_implementation(ATTN_IMPLEMENTATION)
        model.config.attn_implementation = ATTN_IMPLEMENTATION  # without headwise, transformers refuses to load it
    elif not layers_with_scheme(model) and model.config.__dict__.pop("attn_implementation", None) is not None:
        model.set_attn_implementation(model.get_correct_attn_implementation(None))
