"""Utilities for Hugging Face models: finding modules, running a model on an example, comparing outputs."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from headwise._compat import can_set_attn_implementation, get_attn_implementation, set_attn_implementation

#: Names of modules that attend to another sequence.
CROSS_ATTENTION_NAMES = {"encoder_attn", "EncDecAttention", "crossattention", "cross_attn", "cross_attention"}

#: Names of modules behind an encoder that shorten its outputs. Their layers attend to other positions than the encoder.
ADAPTER_NAMES = {"adapter"}


NO_INTERFACE = "computes attention that does not go through transformers' AttentionInterface"


class UnsupportedAttentionError(ValueError):
    """Raised for a model whose attention headwise cannot compute or record.

    Args:
        module: the model or layer.
        reason: what it does; by default, its attention does not go through transformers' `AttentionInterface`.
    """

    def __init__(self, module: nn.Module, reason: str | None = None) -> None:
        self.reason = reason
        reason = reason or (
            f"{NO_INTERFACE}, so the model cannot be retrofitted, and can be guided only if it returns the weights of "
            "all pairs of tokens: with guiding(…, output_attentions=True)"
        )
        super().__init__(f"{type(module).__name__} {reason}")


def unwrap_model(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside a wrapper such as PEFT, DDP, torch.compile or sentence-transformers."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    pretrained = next((module for module in modules if isinstance(module, PreTrainedModel)), None)
    if pretrained is None:
        raise TypeError(f"expected a Hugging Face PreTrainedModel, or a module that contains one; got {type(model)!r}")
    return pretrained


def pretrained_modules(model: nn.Module) -> list[PreTrainedModel]:
    """Return the model and all submodules that have a configuration of their own."""
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def encoders(model: PreTrainedModel) -> list[nn.Module]:
    """Return the encoders of an encoder-decoder model. SeamlessM4T has one for texts and one for speech."""
    parts = [model.get_encoder(), *(getattr(model, name, None) for name in ("text_encoder", "speech_encoder"))]
    return list(dict.fromkeys(part for part in parts if part is not None))


def self_attention_modules(
    model: PreTrainedModel, part: str | None = None, *, include_adapters: bool = True
) -> list[nn.Module]:
    """Return all modules that may compute self-attention.

    Args:
        model: the model.
        part: the part of an encoder-decoder model: `encoder` (default), `decoder` or `both`.
        include_adapters: whether to include the layers of adapters, which attend to other positions than the encoder.
    """
    roots: list[nn.Module] = [model]
    if model.config.is_encoder_decoder:
        roots = encoders(model) if part in (None, "encoder", "both") else []
        roots += [model.get_decoder()] if part in ("decoder", "both") else []
    excluded = CROSS_ATTENTION_NAMES if include_adapters else CROSS_ATTENTION_NAMES | ADAPTER_NAMES
    return [module for root in roots for name, module in root.named_modules() if not excluded & set(name.split("."))]


def cross_attention_modules(model: PreTrainedModel) -> list[nn.Module]:
    """Return all modules of an encoder-decoder model that may compute cross-attention."""
    decoder: nn.Module = model.get_decoder()
    return [module for name, module in decoder.named_modules() if CROSS_ATTENTION_NAMES & set(name.split("."))]


def attn_implementations(model: nn.Module) -> list[tuple[Any, str | None]]:
    """Return all modules with a configuration, and the attention implementation of each.

    The layers of an `EncoderDecoderModel` have other configurations than the encoder or decoder that contains them.
    """
    modules = [module for module in model.modules() if isinstance(module.__dict__.get("config"), PreTrainedConfig)]
    return [(module, get_attn_implementation(module.config)) for module in modules]


def restore_attn_implementations(previous: list[tuple[Any, str | None]]) -> None:
    """Set the attention implementations that `attn_implementations` returned."""
    for module, implementation in previous:
        set_attn_implementation(module.config, implementation)


@contextmanager
def restoring_attn_implementation(model: PreTrainedModel) -> Iterator[list[Any]]:
    """Yield the modules with a configuration, and restore the attention implementation of each on exit."""
    previous = attn_implementations(model)
    try:
        yield [module for module, _ in previous]
    finally:
        restore_attn_implementations(previous)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run a model without dropout and gradients, and restore the training mode of every module on exit."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def execution_device(model: nn.Module) -> torch.device:
    """Return the device on which a model computes. accelerate may store its weights on another one."""
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", (hook,)):
            device = getattr(part, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return next(model.parameters()).device


def example_inputs(model: PreTrainedModel, example: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a batch on the model's device: the given example, or transformers' dummy inputs with padding added."""
    device = execution_device(model)
    if example is not None:
        inputs = {name: x for name, x in example.items() if x is not None}
        return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()}
    inputs = {name: x.to(device) for name, x in model.dummy_inputs.items() if isinstance(x, Tensor)}
    ids = inputs.get("input_ids")
    if ids is not None:
        config = model.config.get_text_config()
        mask = torch.ones_like(ids)
        mask[0, -2:] = 0
        padding_id, end_id = getattr(config, "pad_token_id", None) or 0, getattr(config, "eos_token_id", None)
        ids = ids % config.vocab_size
        if model.config.is_encoder_decoder and isinstance(end_id, int):  # classifiers read the output of the only one
            ids = ids.masked_fill(ids == end_id, (end_id + 1) % config.vocab_size)
            ids[0, -3] = ids[1:, -1] = end_id
        inputs["input_ids"] = ids.masked_fill(mask == 0, padding_id)
        inputs["attention_mask"] = mask
        if model.config.is_encoder_decoder and "decoder_input_ids" in inspect.signature(model.forward).parameters:
            inputs.setdefault("decoder_input_ids", inputs["input_ids"])
    return inputs


class ExampleOutput(NamedTuple):
    """The first floating-point output of a model on an example, and its padding mask, if it has one."""

    output: Tensor
    attention_mask: Tensor | None


def fails_with_headwise(model: nn.Module, error: ValueError) -> UnsupportedAttentionError:
    """Return the error for a model that runs with its own attention, but not with headwise's, given what was raised."""
    if not can_set_attn_implementation(model):  # LED checks the shape of its masks, before it computes attention itself
        return UnsupportedAttentionError(model)
    reason = f"works with its own attention, but fails with headwise's ({error.__cause__})"
    return UnsupportedAttentionError(model, reason)


def run_example(model: Any, example: Mapping[str, Any] | None) -> ExampleOutput:
    """Run a model on an example, without dropout and gradients.

    Raises:
        ValueError: the model failed; the message asks for an example.
    """
    try:
        inputs = example_inputs(model, example)
        with eval_mode(model):
            outputs = model(**inputs, return_dict=True)
    except (UnsupportedAttentionError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        source = "transformers' dummy inputs" if example is None else "the example"
        reason = f"failed on {source} ({type(error).__name__}: {error})"
        if example is None and model.main_input_name not in model.dummy_inputs:
            reason = f"reads {model.main_input_name}, which transformers' dummy inputs do not contain"
        raise ValueError(f"{type(model).__name__} {reason}; pass a batch that the model accepts as example=") from error
    output = next(x for x in outputs.values() if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 0)
    return ExampleOutput(output, output_mask(model, inputs, output))


def output_mask(model: Any, inputs: Mapping[str, Any], output: Tensor) -> Tensor | None:
    """Return which positions of an output (B, N, width) are not padding, (B, N); None if the inputs have no mask.

    Speech models have fewer positions than their inputs have samples or frames.
    """
    mask_name = "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"
    mask: Tensor | None = inputs.get(mask_name)
    if output.dim() != 3:
        return mask
    if mask is not None and hasattr(model, "_get_output_attention_mask"):  # Parakeet
        return cast(Tensor, model._get_output_attention_mask(mask, target_length=output.shape[1]))
    if mask is not None and "input_values" in inputs and hasattr(model, "_get_feature_vector_attention_mask"):
        return cast(Tensor, model._get_feature_vector_attention_mask(output.shape[1], mask))  # Wav2Vec2-Conformer
    count_frames = getattr(model, "_compute_sub_sample_lengths_from_attention_mask", None)
    if count_frames is not None and "attention_mask" in inputs and "decoder_input_ids" not in inputs:
        lengths = count_frames(inputs["attention_mask"])  # of SeamlessM4T's speech encoder
        mask = torch.arange(output.shape[1], device=output.device) < lengths.to(output.device)[:, None]
    return mask


def check_same_outputs(model: nn.Module, before: ExampleOutput, after: ExampleOutput) -> None:
    """Raise RuntimeError if the outputs for real tokens differ by more than rounding errors.

    Outputs of the original that are not finite, such as those of eager attention without a visible key, are left out.
    """
    expected, actual, mask = before.output, after.output, before.attention_mask
    if expected.shape != actual.shape:
        raise RuntimeError(
            f"{type(model).__name__} gives outputs of another shape with headwise's attention ({tuple(actual.shape)} "
            f"instead of {tuple(expected.shape)}), so the model is left unchanged; please report this model"
        )
    if mask is not None and expected.dim() == 3 and expected.shape[:2] == mask.shape:
        expected, actual = expected[mask.bool()], actual[mask.bool()]
    expected, actual = expected[expected.isfinite()], actual[expected.isfinite()]
    if not expected.numel():
        raise RuntimeError(
            f"{type(model).__name__} itself gives no finite outputs on the example, so the model is left unchanged; "
            "pass a batch for which it does as example="
        )
    error = float((expected - actual).abs().max() / expected.abs().max().clamp(min=1e-6))
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) else 0.1
    if not error <= tolerance:
        raise RuntimeError(
            f"{type(model).__name__} gives different outputs with headwise's attention (relative error {error:.1e}), "
            "so the model is left unchanged; please report this model"
        )
