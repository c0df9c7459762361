"""Our attention in other people's models, through transformers' own interfaces.

`AttentionInterface` hands every layer's queries, keys and values to the function registered here, and
`AttentionMaskInterface` lets us say in which form the mask comes. A layer may have a scheme of its own
(`headwise.retrofit`) and a listener, which is told what its tokens receive (`headwise.guiding`); one with neither runs
by torch's kernels, as before.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from headwise.attention import Plain, attend

NAME = "headwise"

#: A layer's attributes: its position scheme, a submodule, and who listens to it, which is none.
SCHEME, LISTENER = "headwise_scheme", "_headwise_listener"


class Listener(Protocol):
    listening: bool
    wants_weights: bool

    def hear(self, layer: nn.Module, heard: "Heard") -> None: ...


class Heard:
    """What one layer did in one forward pass.

    Attributes:
        q: queries (B, H, N, d).
        v: values (B, G, N, d); G key heads, H a multiple of G.
        received: what each token receives from all real tokens, before dropout, (B, H, N).
        weights: the maps, before dropout, (B, H, N, N), if somebody wants them.
        output: each head's output (B, H, N, d).
        real: which tokens are no padding, (B, N).
    """

    def __init__(self, q: Tensor, v: Tensor, output: Tensor, received: Tensor, weights: Tensor | None, real: Tensor):
        self.q, self.v, self.output = q, v, output
        self.received, self.weights, self.real = received, weights, real


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls for every layer: output (B, N, H, d), and weights, which we never return."""
    scheme = getattr(module, SCHEME, None)
    listener: Listener | None = getattr(module, LISTENER, None)
    n, m = query.shape[2], key.shape[2]
    listens = listener is not None and listener.listening and n == m
    if scheme is None and not listens:
        options |= {"scaling": scaling, "dropout": dropout, "is_causal": is_causal, "position_bias": position_bias}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if options.get("softcap") is not None:
        raise ValueError(f"{type(module).__name__} caps its scores (softcap), which headwise's attention cannot do")

    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    key_padding = mask = None
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        position_bias = attention_mask if position_bias is None else position_bias + attention_mask
    elif attention_mask is not None and attention_mask.shape[1:3] == (1, 1):
        key_padding = attention_mask[:, 0, 0, :m]
    elif attention_mask is not None:
        mask = attention_mask[..., :m]
    arguments: dict[str, Any] = {
        "scheme": Plain() if scheme is None else scheme,
        "key_padding": key_padding,
        "mask": mask,
        "causal": causal and attention_mask is None and n > 1,
        "position_bias": position_bias,
        "offset": m - n,
        "dropout": dropout,
        "scale": scaling,
    }
    if not listens:
        output = attend(query, key, value, **arguments)
    else:
        assert listener is not None
        real = real_tokens(key_padding, mask, query)
        output, received, *weights = attend(
            query,
            key,
            value,
            query_padding=real,
            return_received=True,
            return_weights=listener.wants_weights,
            **arguments,
        )
        listener.hear(module, Heard(query, value, output, received, weights[0] if weights else None, real))
    return output.transpose(1, 2).contiguous(), None


def real_tokens(key_padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor:
    """Which tokens are no padding: those that are keys to somebody."""
    if key_padding is not None:
        return key_padding.expand(q.shape[0], -1)
    if mask is not None:
        return mask.expand(q.shape[0], *mask.shape[1:]).any(dim=1).any(dim=1)
    return torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask as our attention takes it: of an encoder (B, 1, 1, M), whose padding is all there is to say."""
    if mask_function is bidirectional_mask_function and options.get("local_size") is None:
        if attention_mask is None or attention_mask.dim() != 2 or bool(attention_mask.all()):
            return None if attention_mask is None or attention_mask.dim() == 2 else attention_mask
        return attention_mask.bool()[:, None, None, kv_offset : kv_offset + kv_length]
    mask: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        **options,
    )
    return mask


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, attention_mask)


@contextmanager
def attached(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's attention go through ours, and undo it in the end."""
    before = {id(part): (part, part.config._attn_implementation) for part in parts(model)}
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        for part, implementation in before.values():
            part.config._attn_implementation_internal = implementation


def parts(model: nn.Module) -> list[PreTrainedModel]:
    """The model and those inside it with a configuration of their own."""
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


class NotThroughTheInterface(ValueError):  # noqa: N818
    """A model whose attention never asks transformers' AttentionInterface."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            f"{type(model).__name__}'s attention does not go through transformers' AttentionInterface, so it can be "
            "neither guided nor given a scheme; BERT, RoBERTa, ModernBERT, GPT-2, Llama, T5 and many others can"
        )


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside what PEFT, DDP, torch.compile or sentence-transformers made of it."""
    found = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if found is None:
        raise TypeError(f"expected a Hugging Face PreTrainedModel, or a module that contains one; got {type(model)!r}")
    return found


def example_inputs(model: PreTrainedModel, example: Mapping[str, Any] | None) -> dict[str, Any]:
    """A batch to try the model on: transformers' own dummy, with padding, or the user's."""
    if example is not None:
        return dict(example)
    inputs = {name: x.to(model.device) for name, x in model.dummy_inputs.items() if isinstance(x, Tensor)}
    ids = inputs.get("input_ids")
    if ids is not None:
        config = model.config.get_text_config()
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        padding = getattr(config, "pad_token_id", None) or 0
        inputs["input_ids"] = (ids % config.vocab_size).masked_fill(mask == 0, padding)
        inputs["attention_mask"] = mask
    return inputs


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients; every module's mode is restored in the end."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
