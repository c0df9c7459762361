"""Our attention in other people's models, through transformers' own interfaces.

`AttentionInterface` hands every layer's queries, keys and values to the function registered here, and
`AttentionMaskInterface` lets us say in which form the mask comes. A layer may have a scheme of its own
(`headwise.retrofit`) and a listener, which is told what its tokens receive (`headwise.guiding`); one with neither runs
by torch's kernels, as before, and so does one with short texts whose listener can wait: it is told later, of several
layers at once. A watcher (`headwise.inspection`) may look at its maps, row by row, and changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from headwise.attention import Plain, attend
from headwise.attention.triton_backend.multi_layer_received import LayerQK
from headwise.integrations.deferred import DeferredReceived, may_wait
from headwise.integrations.observing import AttentionObserver, AttentionRows
from headwise.integrations.recording import LayerRecord, RecordField

NAME = "headwise"

#: A layer's attributes: its position scheme, a submodule, and who listens to it and who watches it, which are none.
SCHEME, LISTENER, WATCHER = "headwise_scheme", "_headwise_listener", "_headwise_watcher"


PLAIN = Plain()

#: Up to which length a layer on a GPU runs by torch's kernels although somebody listens. On longer texts, to compute
#: weights twice would cost more than Python's part in our kernels.
SHORT = 512


class Recorder(Protocol):
    @property
    def is_recording(self) -> bool: ...

    @property
    def required_fields(self) -> frozenset[RecordField]: ...

    def record(self, layer: nn.Module, heard: LayerRecord) -> None: ...


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
    scheme, listener, watcher = attached_to(module)
    n, m = query.shape[2], key.shape[2]
    if attention_mask is not None and attention_mask.shape[-1] < m:  # see `attention_mask`
        m = attention_mask.shape[-1]
        key, value = key[:, :, :m], value[:, :, :m]
        position_bias = None if position_bias is None else position_bias[..., :m]
    watcher = watcher if n == m else None
    listener = listener if listener is not None and listener.is_recording and n == m else None
    by_torch: tuple[Tensor, None] | None = None
    if scheme is None and listener is None:
        known = {"scaling": scaling, "dropout": dropout, "is_causal": is_causal, "position_bias": position_bias}
        by_torch = sdpa_attention_forward(module, query, key, value, attention_mask, **options | known)
        if watcher is None:
            return by_torch
    for option, what in (("softcap", "caps its scores"), ("s_aux", "has attention sinks")):
        if options.get(option) is not None:
            raise ValueError(f"{type(module).__name__} {what} ({option}), which headwise's attention cannot do")

    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = causal and attention_mask is None and n > 1
    if causal and m > n:  # the places of a static cache that are yet to be filled
        key, value, m = key[:, :, :n], value[:, :, :n], n
        position_bias = None if position_bias is None else position_bias[..., :n]
    key_padding, mask, position_bias = masks(attention_mask, position_bias, m)
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    simple = scheme is None and mask is None and position_bias is None
    if listener is not None and simple and can_wait(listener, query, key, value, attention_mask):
        real = real_tokens(key_padding, mask, query.shape[0])
        heard = heard_later(query, key, value, attention_mask, real, dropout=dropout, scale=scale, causal=causal)
        listener.record(module, heard)
        by_torch = heard.output.transpose(1, 2).contiguous(), None
        if watcher is None:
            return by_torch
    arguments: dict[str, Any] = {
        "scheme": PLAIN if scheme is None else scheme,
        "key_padding": key_padding,
        "mask": mask,
        "causal": causal,
        "position_bias": position_bias,
        "offset": first_position(attention_mask if mask is None else mask, n, m),
        "dropout": dropout,
        "scale": scaling,
    }
    if watcher is not None:
        real = real_tokens(key_padding, mask, query.shape[0])
        if real is None:
            real = torch.ones(query.shape[0], n, dtype=torch.bool, device=query.device)
        watcher(module, AttentionRows(query.shape[1], real, scheme, rows_of(query, key, value, real, arguments)))
    if by_torch is not None:
        return by_torch
    if listener is None:
        output = attend(query, key, value, **arguments)
    else:
        real = real_tokens(key_padding, mask, query.shape[0])
        asked = asked_for(listener.required_fields, simple=type(arguments["scheme"]) is Plain and position_bias is None)
        arguments |= {f"return_{name}": True for name in asked}
        output, *results = attend(query, key, value, query_padding=real, **arguments)
        tensors = {"q": query, "k": key, "v": value, "output": output, **dict(zip(asked, results, strict=True))}
        receiving = tensors.pop("received")
        heard = LayerRecord(**tensors, receiving=receiving, padding=real, scale=scale, causal=causal, mask=mask)
        listener.record(module, heard)
    return output.transpose(1, 2).contiguous(), None


def masks(
    attention_mask: Tensor | None, position_bias: Tensor | None, m: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What transformers' mask says, for so many keys: padding (B, M), any other mask, and what is added to scores."""
    if attention_mask is None:
        return None, None, position_bias
    if attention_mask.dtype != torch.bool:  # added to the scores; far below 0: not seen
        mask = attention_mask[..., :m] > torch.finfo(attention_mask.dtype).min / 2
        bias = attention_mask[..., :m].masked_fill(~mask, 0.0)
        return None, mask, bias if position_bias is None else position_bias + bias
    if attention_mask.shape[1:3] == (1, 1):
        padding = attention_mask.flatten(0, 2)
        return padding if padding.shape[1] == m else padding[:, :m], None, position_bias
    return None, attention_mask[..., :m], position_bias


def can_wait(listener: Recorder, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None) -> bool:
    """Whether a layer may run by torch's kernels, and its listener be told later what tokens receive.

    Of grouped heads, those that torch has a fused kernel for: without a mask, as wide in keys as in values, up to 256.
    """
    if q.shape[1] != k.shape[1] and not (attention_mask is None and k.shape[3] == v.shape[3] <= 256):
        return False
    fits = attention_mask is None or attention_mask.shape[-1] == k.shape[2]
    return fits and listener.required_fields <= {"states"} and may_wait(q) and short(q)


def short(q: Tensor) -> bool:
    return q.is_cuda and q.shape[2] <= SHORT


def heard_later(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: Tensor | None,
    real: Tensor | None,
    *,
    dropout: float,
    scale: float,
    causal: bool,
) -> LayerRecord:
    """A layer run by torch's kernels, which still waits to be told what its tokens receive."""
    grouped = q.shape[1] != k.shape[1]
    output = scaled_dot_product_attention(
        q, k, v, attention_mask, dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    low = output.dtype  # autocast's, where that is on
    looks = LayerQK(q if q.dtype == low else q.to(low), k if k.dtype == low else k.to(low), scale, causal, real)
    return LayerRecord(
        q=q, k=k, v=v, output=output, receiving=DeferredReceived(looks), scale=scale, causal=causal, padding=real
    )


def attached_to(module: nn.Module) -> tuple[Any, Recorder | None, AttentionObserver | None]:
    """A layer's scheme, listener and watcher; without `getattr`, which is slow where there is none."""
    own = module.__dict__
    return module._modules.get(SCHEME), own.get(LISTENER), own.get(WATCHER)


def rows_of(
    q: Tensor, k: Tensor, v: Tensor, real: Tensor, arguments: Mapping[str, Any]
) -> Callable[[int, int], Tensor]:
    """What gives the weights of some queries, from one to another, (B, H, queries, N)."""

    def weights(start: int, stop: int) -> Tensor:
        of_rows = {
            name: x if x is None or x.shape[2] == 1 else x[:, :, start:stop]
            for name, x in arguments.items()
            if name in ("mask", "position_bias")
        }
        _, found = attend(
            q[:, :, start:stop],
            k,
            v,
            **{**arguments, **of_rows, "offset": arguments["offset"] + start, "dropout": 0.0},
            query_padding=real[:, start:stop],
            return_weights=True,
            backend="reference",
        )
        weights: Tensor = found
        return weights

    return weights


def asked_for(required_fields: frozenset[RecordField], *, simple: bool) -> list[str]:
    """What to ask of `attend`, in its order; simple scores are scale · q·k alone, so that log-sums give neighbours."""
    neighbours = "neighbours" in required_fields
    asked = {
        "received": True,
        "weight_norms": "weight_norms" in required_fields,
        "lse": neighbours and simple,
        "weights": "weights" in required_fields or (neighbours and not simple),
    }
    return [name for name, needed in asked.items() if needed]


def first_position(mask: Tensor | None, n: int, m: int) -> int:
    """Where the first query stands among the keys: at the last key that it may see, if keys come from a cache."""
    if m == n or mask is None or mask.shape[2] != n:
        return m - n
    if torch.compiler.is_compiling():
        raise ValueError("a scheme and a cache cannot be compiled together: generate with disable_compile=True")
    return m - 1 if n == 1 else int(mask[:, :, 0].flatten(0, 1).any(dim=0).nonzero().max())


def real_tokens(key_padding: Tensor | None, mask: Tensor | None, batch: int) -> Tensor | None:
    """Which tokens are no padding: those that are keys to somebody; None if all are."""
    if key_padding is not None:
        return key_padding if key_padding.shape[0] == batch else key_padding.expand(batch, -1)
    return None if mask is None else mask.expand(batch, *mask.shape[1:]).any(dim=1).any(dim=1)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,  # a tensor of a static cache
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor | None:
    """The mask as our attention takes it: of an encoder (B, 1, 1, M), whose padding is all there is to say.

    Of a static cache it ends where the keys do: the places yet to be filled would look like keys before the query.
    """
    if mask_function is bidirectional_mask_function and options.get("local_size") is None:
        if attention_mask is None or attention_mask.dim() != 2:
            return attention_mask
        if not torch.compiler.is_compiling() and bool(attention_mask.all()):
            return None
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
    if mask is not None and not torch.compiler.is_compiling() and (isinstance(q_offset, Tensor) or q_offset):
        mask = mask[..., : int(q_offset) + q_length - kv_offset]
    return mask


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, attention_mask)


@contextmanager
def use_headwise_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's attention go through ours, and undo it in the end."""
    before = {id(part): (part, part.config._attn_implementation) for part in parts(model)}
    model.set_attn_implementation(NAME)
    for part, _ in before.values():  # some hold a copy of the configuration, which older transformers pass over
        part.config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        for part, implementation in before.values():
            part.config._attn_implementation_internal = implementation


def parts(model: nn.Module) -> list[PreTrainedModel]:
    """The model and those inside it with a configuration of their own."""
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


#: What layers that look at another sequence are called.
CROSS = {"encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention"}


def self_attention(model: PreTrainedModel) -> list[nn.Module]:
    """The modules that may hold self-attention; of an encoder and decoder, those of the encoder."""
    whole: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model
    return [module for name, module in whole.named_modules() if not CROSS & set(name.split("."))]


@contextmanager
def recording(model: PreTrainedModel, listener: Recorder) -> Iterator[None]:
    """Let somebody listen to a model's self-attention."""
    modules = self_attention(model)
    others = [module.__dict__.get(LISTENER) for module in modules]
    if any(other is not None and not getattr(other, "over", False) for other in others):
        raise RuntimeError(f"{type(model).__name__} is guided already: give all guides to one guiding(…)")
    for module in modules:
        module.__dict__[LISTENER] = listener
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop(LISTENER, None)


@contextmanager
def observing(model: PreTrainedModel, watcher: AttentionObserver) -> Iterator[None]:
    """Let somebody look at the maps of a model's self-attention, which runs as it would."""
    modules = self_attention(model)
    for module in modules:
        module.__dict__[WATCHER] = watcher
    try:
        yield
    finally:
        for module in modules:
            module.__dict__.pop(WATCHER, None)


class UnsupportedAttentionError(ValueError):
    """A model whose attention never asks transformers' AttentionInterface."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(
            f"{type(model).__name__}'s attention does not go through transformers' AttentionInterface, so it can be "
            "neither given a scheme nor guided without maps; guiding(…, output_attentions=True) reads its own maps"
        )


def unwrap_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside what PEFT, DDP, torch.compile or sentence-transformers made of it."""
    found = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if found is None:
        raise TypeError(f"expected a Hugging Face PreTrainedModel, or a module that contains one; got {type(model)!r}")
    return found


def example_inputs(model: PreTrainedModel, example: Mapping[str, Any] | None) -> dict[str, Any]:
    """A batch to try the model on: transformers' own dummy, with padding, or the user's."""
    if example is not None:
        given = {name: x for name, x in example.items() if x is not None}
        return {name: x.to(model.device) if isinstance(x, Tensor) else x for name, x in given.items()}
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


def outputs_of(model: Any, example: Mapping[str, Any] | None) -> tuple[Tensor, Tensor | None]:
    """The model's first output on an example, and which tokens of it are real."""
    try:
        inputs = example_inputs(model, example)
        with eval_mode(model):
            output = model(**inputs, return_dict=True)
    except (UnsupportedAttentionError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        given = "the example" if example is not None else "transformers' dummy inputs"
        raise ValueError(
            f"{type(model).__name__} could not be tried on {given} ({type(error).__name__}: {error}); give a batch of "
            "its own as example="
        ) from error
    found = next(x for x in output.values() if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 0)
    return found, None if model.config.is_encoder_decoder else inputs.get("attention_mask")


def compare(model: nn.Module, before: tuple[Tensor, Tensor | None], after: tuple[Tensor, Tensor | None]) -> None:
    """Raise if outputs for real tokens are not the same."""
    (expected, mask), (found, _) = before, after
    if mask is not None and expected.dim() == 3 and expected.shape[:2] == mask.shape:
        expected, found = expected[mask.bool()], found[mask.bool()]
    error = float((expected - found).abs().max() / expected.abs().max().clamp(min=1e-6))
    precise = expected.dtype in (torch.float32, torch.float64)
    if not error <= (1e-3 if precise else 0.1):
        raise RuntimeError(
            f"{type(model).__name__} gives other outputs through headwise's attention (by {error:.1e}): it is left as "
            "it was; please report this model"
        )


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients; every module's mode is restored in the end."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
