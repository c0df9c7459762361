"""Capture of a model's attention while it runs. The model's outputs do not change."""

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
    UnsupportedAttentionError,
    eval_mode,
    observing,
    recording,
    recording_output_attentions,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations.fusion import is_fused

#: Limit for models that return the maps of all layers at once (`output_attentions`).
MAX_OUTPUT_ATTENTIONS_LENGTH = 1024


def capture_attention(model: nn.Module, inputs: Mapping[str, Tensor], observer: AttentionObserver) -> Any:
    """Run a model without dropout and gradients, and call an observer with the attention of each layer.

    Args:
        model: a headwise model, or a Hugging Face model that uses transformers' `AttentionInterface` or supports
            `output_attentions`. Only the encoder of an encoder-decoder model is run.
        inputs: a batch for the model.
        observer: called with each self-attention layer, in the order in which the layers run.

    Returns:
        The model's output.

    Raises:
        UserError: the model's attention is not accessible.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2))
        >>> inputs, maps = {"input_ids": torch.tensor([[5, 6, 7]])}, []
        >>> output = capture_attention(model, inputs, lambda layer, rows: maps.append(rows.weights(0, 3)))
        >>> len(maps), maps[0].shape
        (3, torch.Size([1, 2, 3, 3]))
    """
    encoder = get_encoder(model, inputs)
    headwise_layers = find_headwise_layers(encoder)
    if headwise_layers:
        with observing_layers(headwise_layers, observer), eval_mode(encoder):
            return encoder(**inputs)
    inner = unwrap_model(model)
    num_calls = 0

    def count_calls(layer: nn.Module, rows: AttentionRows) -> None:
        nonlocal num_calls
        num_calls += 1
        observer(layer, rows)

    output = None
    with use_headwise_attention(inner), observing(inner, count_calls), eval_mode(inner):
        try:
            output = encoder(**inputs)
        except Exception:  # Longformer reads the mask, which headwise's attention does not build without padding
            if num_calls:
                raise
    return output if num_calls else _capture_output_attentions(inner, encoder, inputs, observer)


def get_encoder(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Return the encoder of an encoder-decoder model that reads the inputs; other models as they are."""
    inner = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if inner is None or not inner.config.is_encoder_decoder:
        return model
    encoder: Any = inner.get_encoder()
    if "input_features" in inputs:
        encoder = getattr(inner, "speech_encoder", encoder)  # SeamlessM4T has one for texts, too
    return encoder if hasattr(encoder, "main_input_name") else model  # FastSpeech2-Conformer's reads no tokens


def find_headwise_layers(model: nn.Module) -> list[MultiheadAttention]:
    """Return headwise's own attention layers in a model."""
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]


@contextmanager
def observing_layers(
    layers: list[MultiheadAttention], observer: AttentionObserver, *, cross: bool = False
) -> Iterator[None]:
    """Attach an observer to headwise's own layers: to self-attention, or to cross-attention."""

    def hook(layer: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        arguments = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
        query, key = arguments["query"], arguments["key"]
        if query.dim() != 3 or (query is key) == cross:
            return
        padding = None if cross else arguments.get("key_padding_mask")
        real = torch.ones(query.shape[:2], dtype=torch.bool, device=query.device) if padding is None else ~padding
        observer(layer, AttentionRows(layer.num_heads, real, layer.scheme, row_weights(layer, arguments)))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def row_weights(layer: MultiheadAttention, arguments: Mapping[str, Any]) -> Callable[[int, int], Tensor]:
    """Return the function that computes the weights of a range of queries by calling the layer again."""
    weight_options = {"need_weights": True, "average_attn_weights": False, "need_received": False}

    def compute(start: int, stop: int) -> Tensor:
        row_arguments = {"query": arguments["query"][:, start:stop], "offset": (arguments.get("offset") or 0) + start}
        if arguments.get("query_padding_mask") is not None:
            row_arguments["query_padding_mask"] = arguments["query_padding_mask"][:, start:stop]
        for name in ("attn_mask", "position_bias"):
            if arguments.get(name) is not None and arguments[name].shape[-2] > 1:
                row_arguments[name] = arguments[name][..., start:stop, :]
        weights = layer.forward(**{**arguments, **weight_options, **row_arguments})[1]
        assert weights is not None
        return weights

    return compute


class _MapForwarder:
    """A recorder that passes the maps a model returns on to an observer."""

    is_recording, required_fields = True, frozenset[RecordField]({"weights"})

    def __init__(self, observer: AttentionObserver) -> None:
        self.observer = observer

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        weights = record.weights
        assert weights is not None
        self.observer(
            layer, AttentionRows(weights.shape[1], record.real, None, lambda start, stop: weights[:, :, start:stop])
        )


def _capture_output_attentions(
    model: PreTrainedModel, encoder: Any, inputs: Mapping[str, Tensor], observer: AttentionObserver
) -> Any:
    """Run a model that does not use transformers' `AttentionInterface`, and pass on the maps that it returns."""
    name = type(model).__name__
    if "input_ids" not in inputs:
        raise UserError(
            f"{name} computes attention that does not go through transformers' AttentionInterface; call "
            "headwise.fuse_attention(model) first if it is of a family that can be fused"
        )
    if is_fused(model):
        raise UserError(f"{name} attends to states of earlier inputs (mems or a cache), which cannot be inspected")
    length = inputs["input_ids"].shape[-1]
    if length > MAX_OUTPUT_ATTENTIONS_LENGTH:
        raise UserError(
            f"{name} does not use transformers' AttentionInterface, so the maps of all layers are held at once: at "
            f"most {MAX_OUTPUT_ATTENTIONS_LENGTH} tokens are supported, got {length}"
        )
    try:
        with recording_output_attentions(model, _MapForwarder(observer)), eval_mode(model):
            return encoder(**inputs)
    except ValueError as error:
        raise UserError(
            f"{name}: its attention is not accessible; it neither uses transformers' AttentionInterface nor returns "
            f"its maps ({error})"
        ) from None


class _MapRecorder:
    """A recorder that stores the maps of the layers, in the order in which they run."""

    is_recording, required_fields = True, frozenset[RecordField]({"weights"})

    def __init__(self) -> None:
        self.maps: list[Tensor] = []

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        assert record.weights is not None
        self.maps.append(record.weights)


def attention_maps(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Return the attention weights of all heads, (layers, B, heads, N, N), with the model's scheme if it has one.

    Args:
        model: a Hugging Face model that uses transformers' `AttentionInterface`. It is not changed.
        inputs: a batch for the model.

    Raises:
        UnsupportedAttentionError: the model does not use the interface.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2))
        >>> attention_maps(model, {"input_ids": torch.tensor([[5, 6, 7, 8]])}).shape
        torch.Size([3, 1, 2, 4, 4])
    """
    inner, recorder = unwrap_model(model), _MapRecorder()
    with use_headwise_attention(inner), recording(inner, recorder), eval_mode(inner):
        inner(**inputs)
    if not recorder.maps:
        raise UnsupportedAttentionError(inner)
    return torch.stack(recorder.maps)
