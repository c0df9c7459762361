"""Packing in Hugging Face models: layers compute the tokens of a batch without padding.

Hooks concatenate the tokens before the first layer of a stack and pad them again after the last one, so embeddings and
heads see the padded batch. Attention layers read the lengths of the texts from the model's `Packing`.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise._compat import get_attn_implementation
from headwise._scheme_loading import ATTN_IMPLEMENTATION
from headwise.attention.packing import PackedTokens
from headwise.integrations.model_utils import (
    NO_INTERFACE,
    UnsupportedAttentionError,
    check_same_outputs,
    run_example,
    unwrap_model,
)
from headwise.integrations.packed_attention import PACKING
from headwise.integrations.retrofit import find_attention_layers


class Packing:
    """The packed tokens of a model's current batch, and the hooks that set and use them.

    Args:
        base: the model that takes the padded batch.
        layers: the stack of its layers.
    """

    def __init__(self, base: PreTrainedModel, layers: list[nn.Module]) -> None:
        self.mask_index = list(inspect.signature(base.forward).parameters).index("attention_mask")
        self.first, self.last = layers[0], layers[-1]
        self.tokens: PackedTokens | None = None
        base.register_forward_pre_hook(self.start_batch, with_kwargs=True)
        for layer in layers:
            layer.register_forward_pre_hook(self.pack_arguments, with_kwargs=True)
        self.last.register_forward_hook(self.unpack_output)

    @property
    def cu_seqlens(self) -> Tensor | None:
        """Cumulative lengths of the batch's texts, (B+1,); None if it has no padding."""
        return None if self.tokens is None else self.tokens.cu_seqlens

    def start_batch(self, base: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        mask = args[self.mask_index] if len(args) > self.mask_index else kwargs.get("attention_mask")
        self.tokens = PackedTokens.from_mask(mask) if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def pack_arguments(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pack everything that has a value for each token, and drop masks."""
        if self.tokens is None:
            return None
        hidden, *others = args if args else (kwargs["hidden_states"],)
        hidden = self.tokens.pack(hidden) if layer is self.first else hidden
        packed = {name: self.pack(x) for name, x in kwargs.items()}
        if not args:
            return (), packed | {"hidden_states": hidden}
        return (hidden, *map(self.pack, others)), packed

    def pack(self, x: Any) -> Any:
        tokens = self.tokens
        assert tokens is not None
        if isinstance(x, tuple | list):
            return type(x)(map(self.pack, x))
        if not isinstance(x, Tensor) or x.dim() < 2:
            return x
        if x.dim() == 4:  # an attention mask
            return None
        return tokens.pack(x) if x.shape[1] == tokens.shape[1] and x.shape[0] in (1, tokens.shape[0]) else x

    def unpack_output(self, layer: nn.Module, args: Any, output: Any) -> Any:
        if self.tokens is None:
            return None
        if isinstance(output, tuple):
            return (self.tokens.unpack(output[0]), *output[1:])
        return self.tokens.unpack(output)


def enable_packing(model: nn.Module, example: Mapping[str, Any] | None = None) -> None:
    """Make the layers of a model compute the tokens of a batch without padding, with the same outputs.

    Args:
        model: a `PreTrainedModel`, or a module that contains one. It is changed in place.
        example: a batch with padding, to compare the outputs with; transformers' dummy inputs by default.

    Raises:
        UnsupportedAttentionError: the model's attention does not go through transformers' `AttentionInterface`, or
            depends on positions in a way that packing does not support.
        ValueError: the model has no stack of layers that all contain attention, or its outputs would change.
    """
    inner = unwrap_model(model)
    if inner.config.is_encoder_decoder:
        raise ValueError(f"{type(inner).__name__} is an encoder-decoder model, which cannot be packed")
    try:
        attention_layers = [layer for layer, *_ in find_attention_layers(inner, example)]
    except UnsupportedAttentionError:
        raise UnsupportedAttentionError(inner, f"{NO_INTERFACE}, so it cannot be packed") from None
    layers = find_stack(inner, attention_layers)
    before = run_example(inner, example)
    base: Any = inner.base_model
    previous = get_attn_implementation(inner.config) or "eager"
    inner.set_attn_implementation(ATTN_IMPLEMENTATION)
    packing = Packing(base, layers)
    for layer in attention_layers:
        layer.__dict__[PACKING] = packing
    try:
        check_same_outputs(inner, before, run_example(inner, example))
    except Exception:
        remove_packing(inner)
        inner.set_attn_implementation(previous)
        raise


def remove_packing(model: nn.Module) -> None:
    """Remove the hooks of `enable_packing`."""
    for module in model.modules():
        module.__dict__.pop(PACKING, None)
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", None), Packing)]:
                del hooks[key]


def find_stack(model: nn.Module, attention_layers: list[nn.Module]) -> list[nn.Module]:
    """Return the layers of a model: the innermost list of modules that contains all of its attention.

    Raises:
        ValueError: there is none, or some of its layers contain no attention.
    """
    attention = set(attention_layers)
    stacks = [
        module for module in model.modules() if isinstance(module, nn.ModuleList) and attention <= set(module.modules())
    ]
    if not stacks:
        raise ValueError(f"{type(model).__name__} has no stack of layers that contains all of its attention")
    layers = list(stacks[-1])  # parents come before their children
    if not all(attention & set(layer.modules()) for layer in layers):
        raise ValueError(f"{type(model).__name__} has layers without attention, which may mix the tokens of texts")
    return layers
