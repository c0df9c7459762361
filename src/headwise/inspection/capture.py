"""Looking at a model's attention while it runs, layer by layer; what the model computes stays as it is."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.attention import MultiheadAttention
from headwise.errors import UserError
from headwise.integrations import (
    AttentionObserver,
    AttentionRows,
    LayerRecord,
    RecordField,
    eval_mode,
    observing,
    recording_output_attentions,
    unwrap_model,
    use_headwise_attention,
)

#: A model that does not ask transformers' interface gives the maps of all its layers at once: no longer texts for it.
LONGEST_OWN_MAPS = 1024


def watch(model: nn.Module, inputs: Mapping[str, Tensor], watcher: AttentionObserver) -> Any:
    """Run a model, without dropout and gradients, and show its layers' maps to a watcher as they come.

    Args:
        model: one of ours, or any Hugging Face model that asks transformers' `AttentionInterface`, or that returns its
            maps; of an encoder and decoder, the encoder.
        inputs: a batch of it.
        watcher: called with each self-attention layer, in the order in which they run.

    Returns:
        The model's output, as it would be unwatched.

    Raises:
        UserError: its attention cannot be seen.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2))
        >>> inputs, seen = {"input_ids": torch.tensor([[5, 6, 7]])}, []
        >>> output = watch(model, inputs, lambda layer, rows: seen.append(rows.weights(0, 3)))
        >>> len(seen), seen[0].shape
        (3, torch.Size([1, 2, 3, 3]))
    """
    ours = [module for module in model.modules() if isinstance(module, MultiheadAttention)]
    if ours:
        with hooked(ours, watcher), eval_mode(model):
            return model(**inputs)
    inner = unwrap_model(model)
    run: Any = inner.get_encoder() if inner.config.is_encoder_decoder else inner
    seen = 0

    def counting(layer: nn.Module, rows: AttentionRows) -> None:
        nonlocal seen
        seen += 1
        watcher(layer, rows)

    with use_headwise_attention(inner), observing(inner, counting), eval_mode(inner):
        output = run(**inputs)
    return output if seen else by_own_maps(inner, run, inputs, watcher)


@contextmanager
def hooked(layers: list[MultiheadAttention], watcher: AttentionObserver) -> Iterator[None]:
    """Our own layers, watched after they ran; those that look at another sequence are passed over."""

    def ran(layer: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        given = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
        query, key = given["query"], given["key"]
        if query is key and query.dim() == 3:
            padding = given.get("key_padding_mask")
            real = torch.ones(query.shape[:2], dtype=torch.bool, device=query.device) if padding is None else ~padding
            watcher(layer, AttentionRows(layer.heads, real, layer.scheme, rows_of(layer, given)))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(ran, with_kwargs=True).remove)
        yield


def rows_of(layer: MultiheadAttention, given: Mapping[str, Any]) -> Callable[[int, int], Tensor]:
    """What gives a layer's weights for some queries, by calling it again for these."""
    weighty = {"need_weights": True, "average_attn_weights": False, "need_received": False}

    def weights(start: int, stop: int) -> Tensor:
        few = {"query": given["query"][:, start:stop], "offset": given.get("offset", 0) + start}
        if given.get("query_padding_mask") is not None:
            few["query_padding_mask"] = given["query_padding_mask"][:, start:stop]
        for name in ("attn_mask", "position_bias"):
            if given.get(name) is not None and given[name].shape[-2] > 1:
                few[name] = given[name][..., start:stop, :]
        found = layer.forward(**{**given, **weighty, **few})[1]
        assert found is not None
        return found

    return weights


class _Ears:
    """Hears the maps that a model returns itself."""

    is_recording, required_fields = True, frozenset[RecordField]({"weights"})

    def __init__(self, watcher: AttentionObserver) -> None:
        self.watcher = watcher

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        whole = heard.weights
        assert whole is not None
        self.watcher(
            layer, AttentionRows(whole.shape[1], heard.real, None, lambda start, stop: whole[:, :, start:stop])
        )


def by_own_maps(model: PreTrainedModel, run: Any, inputs: Mapping[str, Tensor], watcher: AttentionObserver) -> Any:
    name, length = type(model).__name__, inputs["input_ids"].shape[-1]
    if length > LONGEST_OWN_MAPS:
        raise UserError(
            f"{name} does not ask transformers' AttentionInterface, so that all its maps come at once: at most "
            f"{LONGEST_OWN_MAPS} tokens, got {length}"
        )
    try:
        with recording_output_attentions(model, _Ears(watcher)), eval_mode(model):
            return run(**inputs)
    except ValueError as error:
        raise UserError(
            f"{name}: its attention cannot be seen; it neither asks transformers' AttentionInterface nor returns its "
            f"maps ({error})"
        ) from None
