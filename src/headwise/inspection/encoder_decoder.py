"""The attention of encoder-decoder models, such as translators: encoder, decoder and cross-attention.

The model generates a text, or reads a given one (forced decoding). Its attention is captured in one more pass over the
source and that text, without a cache. At each position the decoder reads a token and predicts the next one.

L layers, T target tokens, N source tokens.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headwise.errors import UserError
from headwise.inspection.capture import MAX_OUTPUT_ATTENTIONS_LENGTH, find_headwise_layers, observing_layers
from headwise.inspection.inspected_model import InspectedModel, Prediction, Texts
from headwise.inspection.measures import row_blocks
from headwise.inspection.passages import Alignment, PassageAttention, capture_passages
from headwise.inspection.quantize import QuantizedLayer, quantize_layer
from headwise.integrations import (
    AttentionObserver,
    AttentionRows,
    eval_mode,
    observing,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations.model_utils import restoring_attn_implementation
from headwise.integrations.output_attentions import are_maps
from headwise.native_errors import tokenizer_errors

#: The parts of a model, in the order in which they are shown, and their titles.
PARTS = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
#: How many tokens a generated text may have more than the source, and at most, unless the model's configuration limits
#: it.
MAX_EXTRA_TOKENS, MAX_NEW_TOKENS = 50, 512


def capture_encoder_decoder(
    model: nn.Module, inputs: Mapping[str, Tensor], observers: Mapping[str, AttentionObserver]
) -> Any:
    """Run an encoder-decoder model without dropout and gradients, and call observers with the attention of its layers.

    Args:
        model: a translator of headwise, or a Hugging Face model that uses transformers' `AttentionInterface` or
            supports `output_attentions`.
        inputs: a batch for the model, with `decoder_input_ids`.
        observers: one for each part: `encoder`, `decoder` (self-attention) and `cross`.

    Returns:
        The model's output.

    Raises:
        UserError: the model's attention is not accessible.
    """
    inner: Any = unwrap_model(model)
    num_calls = dict.fromkeys(observers, 0)

    def count_calls(part: str) -> AttentionObserver:
        def observe(layer: nn.Module, rows: AttentionRows) -> None:
            num_calls[part] += 1
            observers[part](layer, rows)

        return observe

    with ExitStack() as stack:
        stack.enter_context(eval_mode(inner))
        if find_headwise_layers(inner):
            for part in observers:
                layers = find_headwise_layers(inner.encoder if part == "encoder" else inner.decoder)
                stack.enter_context(observing_layers(layers, count_calls(part), cross=part == "cross"))
        else:
            stack.enter_context(use_headwise_attention(inner))
            for part in observers:
                stack.enter_context(observing(inner, count_calls(part), part))
        output = inner(**inputs, use_cache=False)
    missing = [part for part, count in num_calls.items() if not count]
    return capture_returned_maps(inner, inputs, {part: observers[part] for part in missing}) if missing else output


def capture_returned_maps(model: Any, inputs: Mapping[str, Tensor], observers: Mapping[str, AttentionObserver]) -> Any:
    """Run a model that does not use transformers' `AttentionInterface`, and pass on the maps that it returns.

    Raises:
        UserError: it returns none, or the texts are too long for maps of all layers.
    """
    name, length = type(model).__name__, max(inputs[name].shape[1] for name in ("input_ids", "decoder_input_ids"))
    if length > MAX_OUTPUT_ATTENTIONS_LENGTH:
        raise UserError(
            f"{name} does not use transformers' AttentionInterface, so the maps of all layers are held at once: at "
            f"most {MAX_OUTPUT_ATTENTIONS_LENGTH} tokens are supported, got {length}"
        )
    with restoring_attn_implementation(model), eval_mode(model):
        model.set_attn_implementation("eager")
        output = model(**inputs, use_cache=False, output_attentions=True, return_dict=True)
    for part, observer in observers.items():
        maps = getattr(output, f"{part}_attentions", None)
        is_windowed = part == "encoder" and hasattr(output, "encoder_global_attentions")  # LED
        if not maps or is_windowed or not are_maps(maps):
            raise UserError(
                f"{name}: its {PARTS[part]} is not accessible; it neither uses transformers' AttentionInterface nor "
                "returns maps of all pairs of tokens"
            )
        for weights in maps:
            real = torch.ones(len(weights), weights.shape[2], dtype=torch.bool, device=weights.device)
            observer(model, AttentionRows(weights.shape[1], real, None, partial(get_rows, weights)))
    return output


def get_rows(weights: Tensor, start: int, stop: int) -> Tensor:
    """Return the weights (B, heads, queries, keys) of some queries."""
    return weights[:, :, start:stop]


@dataclass(frozen=True)
class DecodedText:
    """The text that a decoder reads and predicts.

    Args:
        decoder_input_ids: the tokens that it reads, (1, T).
        labels: the tokens that it predicts, (1, T).
        text: the text.
        is_given: False if the model generated it.
        truncated: whether the text was cut.
    """

    decoder_input_ids: Tensor
    labels: Tensor
    text: str
    is_given: bool
    truncated: bool


def read_target(model: InspectedModel, target: str) -> DecodedText:
    """Return a given text as the decoder's inputs and outputs.

    Raises:
        UserError: the text is empty.
    """
    with tokenizer_errors(model.tokenizer):
        encoding = model.tokenizer(text_target=target, truncation=True, max_length=model.max_tokens)
    if not target.strip() or not encoding["input_ids"]:
        raise UserError("a target text is empty")
    truncated = any(getattr(row, "overflowing", None) for row in encoding.encodings or ())
    labels = torch.tensor([list(encoding["input_ids"])], device=next(model.model.parameters()).device)
    inner: Any = unwrap_model(model.model)
    if hasattr(inner, "prepare_decoder_input_ids_from_labels"):
        decoder_input_ids = inner.prepare_decoder_input_ids_from_labels(labels=labels)
    else:
        start = inner.config.decoder_start_token_id
        start = inner.config.pad_token_id if start is None else start
        decoder_input_ids = torch.cat([labels.new_full((1, 1), start), labels[:, :-1]], dim=1)
    return DecodedText(decoder_input_ids, labels, target, is_given=True, truncated=truncated)


def generate_text(model: InspectedModel, inputs: Mapping[str, Tensor]) -> DecodedText:
    """Generate a text with the options of the model's configuration."""
    inner: Any = unwrap_model(model.model)
    config = inner.generation_config
    options = dict(model.generation)
    limit = getattr(inner.config, "max_position_embeddings", None)
    if not config.max_new_tokens and config.max_length in (None, 20):  # 20 is the default of transformers
        num_tokens = min(inputs["input_ids"].shape[1] + MAX_EXTRA_TOKENS, MAX_NEW_TOKENS)
        options["max_new_tokens"] = min(num_tokens, limit - 1) if limit else num_tokens
    with torch.no_grad():
        ids = inner.generate(**inputs, do_sample=False, **options)
    end = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    text = str(model.tokenizer.decode(ids[0], skip_special_tokens=True)).strip()
    is_complete = int(ids[0, -1]) in end
    return DecodedText(ids[:, :-1], ids[:, 1:], text, is_given=False, truncated=not is_complete)


@dataclass
class _Capture:
    """The layers of the three parts, and the sums that alignments are computed from."""

    source_length: int
    target_length: int
    layers: dict[str, list[QuantizedLayer]] = field(default_factory=lambda: {part: [] for part in PARTS})
    mean_sum: Any = 0.0
    sources: list[NDArray[np.int64]] = field(default_factory=list)
    weights: list[NDArray[np.float32]] = field(default_factory=list)

    def observer(self, part: str) -> AttentionObserver:
        def observe(_: nn.Module, rows: AttentionRows) -> None:
            length = self.source_length if part == "encoder" else self.target_length
            keys = [self.source_length] if part == "cross" else None
            self.layers[part].append(quantize_layer(rows, [length], keys))
            if part == "cross":
                self.align(rows)

        return observe

    def align(self, rows: AttentionRows) -> None:
        """Add a layer to the alignment."""
        blocks = row_blocks(self.target_length, 1, rows.heads, num_keys=self.source_length)
        mean = torch.cat([rows.weights(start, stop)[0].float().mean(dim=0) for start, stop in blocks]).cpu().numpy()
        self.mean_sum = self.mean_sum + mean
        self.sources.append(mean.argmax(axis=1))
        self.weights.append(mean.max(axis=1))

    def alignment(self) -> Alignment:
        """Return the alignment of all layers."""
        mean = np.asarray(self.mean_sum / len(self.sources), dtype=np.float32)
        return Alignment(mean, np.stack(self.sources), np.stack(self.weights))


def capture_text_pair(model: InspectedModel, texts: Texts, target: str | None = None) -> list[PassageAttention]:
    """Run an encoder-decoder model and return its attention in the encoder, in the decoder and between them.

    Args:
        model: the model.
        texts: the source.
        target: the text that the decoder reads; by default the one that the model generates.

    Raises:
        UserError: the model's attention is not accessible, or a text is empty.
    """
    batch = model.encode([texts])
    decoded = generate_text(model, batch.inputs) if target is None else read_target(model, target)
    source = batch.passages[0].tokens
    inputs, outputs = (
        tuple(map(model.token_text, ids[0].tolist())) for ids in (decoded.decoder_input_ids, decoded.labels)
    )
    capture = _Capture(len(source), len(inputs))
    decoder_inputs = {**batch.inputs, "decoder_input_ids": decoded.decoder_input_ids}
    capture_encoder_decoder(model.model, decoder_inputs, {part: capture.observer(part) for part in PARTS})
    tokens = {"encoder": (source, None), "decoder": (inputs, None), "cross": (outputs, source)}
    prediction = Prediction(text=decoded.text, is_given=decoded.is_given)
    return [
        PassageAttention(
            title,
            tokens[part][0],
            tuple(capture.layers[part]),
            prediction,
            batch.truncated or decoded.truncated,
            key_tokens=tokens[part][1],
            alignment=capture.alignment() if part == "cross" else None,
        )
        for part, title in PARTS.items()
    ]


def capture_text(model: InspectedModel, texts: Texts, target: str | None = None) -> list[PassageAttention]:
    """Run a model on a text or a pair and return its attention, one entry for each passage.

    Args:
        model: the model.
        texts: the text or the pair.
        target: the text that the decoder of an encoder-decoder model reads; by default the one that it generates.

    Raises:
        UserError: a target is given and the model has no decoder, or an error of `capture_passages`.
    """
    is_encoder_decoder = getattr(model.config, "is_encoder_decoder", False)
    has_no_head = is_encoder_decoder and model.model is getattr(model.model, "base_model", None)
    if model.generates_text or (target is not None and has_no_head):
        return capture_text_pair(model, texts, target)
    if target is not None:
        raise UserError(f"{model.name} has no decoder; --target is for translators and other encoder-decoder models")
    return capture_passages(model, texts)
