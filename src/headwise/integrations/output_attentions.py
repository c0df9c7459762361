"""Recording of models that do not use transformers' `AttentionInterface`, from the weights that they return.

These weights are taken after dropout, and take N × N memory per head.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from headwise.integrations.model_utils import UnsupportedAttentionError, restoring_attn_implementation
from headwise.integrations.recording import LayerRecord, Recorder


@contextmanager
def recording_output_attentions(model: PreTrainedModel, recorder: Recorder) -> Iterator[None]:
    """Record the weights that a model returns with `output_attentions=True`; its callers do not receive them.

    Raises:
        UnsupportedAttentionError: when the model runs, if it returns no weights, or not those of all pairs of tokens
            (Longformer).
    """
    base: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model

    def request_attentions(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if recorder.is_recording:
            kwargs = kwargs | {"output_attentions": True, "return_dict": True}
        return args, kwargs

    def record_attentions(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if not recorder.is_recording:
            return output
        attentions = output.get("attentions") if isinstance(output, ModelOutput) else None
        if not attentions or any(weights is None for weights in attentions):
            raise UnsupportedAttentionError(model, "returns no attention weights, so it cannot be guided")
        is_windowed = hasattr(output, "global_attentions")  # Longformer: weights by offset in its window
        if is_windowed or not are_maps(attentions) or any(maps.shape[2] != maps.shape[3] for maps in attentions):
            reason = "returns attention weights, but not of all pairs of tokens, so it cannot be guided"
            raise UnsupportedAttentionError(model, reason)
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        length = output[0].shape[1]
        for weights in attentions:
            recorder.record(base, record_from_weights(weights, mask, length))
        return type(output)(**{name: x for name, x in output.items() if name != "attentions"})

    with ExitStack() as stack:
        stack.enter_context(restoring_attn_implementation(model))
        model.set_attn_implementation("eager")
        stack.callback(base.register_forward_pre_hook(request_attentions, with_kwargs=True).remove)
        stack.callback(base.register_forward_hook(record_attentions, with_kwargs=True).remove)
        yield


def are_maps(attentions: Any) -> bool:
    """Return whether weights that a model returns are maps (B, H, N, M). Those of LongT5 are of blocks."""
    return all(isinstance(weights, Tensor) and weights.dim() == 4 for weights in attentions)


def record_from_weights(weights: Tensor, mask: Tensor | None, length: int) -> LayerRecord:
    """Return the record of a layer with weights (B, H, N, N); those of BigBird are of whole blocks of tokens.

    The weights stand for the queries, so that the gradients of task and guides can be compared there.
    """
    padding = None if mask is None else mask.bool()
    real_weights = weights[:, :, :length, :length]
    if padding is not None:
        real_weights = real_weights * (padding[:, None, :, None] & padding[:, None, None, :])
    return LayerRecord(
        q=weights,
        k=weights,
        v=weights,
        output=weights,
        received=real_weights.sum(dim=2),
        padding=padding,
        causal=not bool(weights.triu(1).any()),
        scale=1.0,
        weight_norms=real_weights.square().sum(dim=3),
        weights=real_weights,
    )
