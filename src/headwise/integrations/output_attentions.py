"""Models whose attention does not ask transformers' interface, heard by the maps that they return themselves.

They cost N × N memory a head, and come after dropout.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from headwise.integrations.hf_attention import Recorder, parts
from headwise.integrations.recording import LayerRecord


@contextmanager
def recording_output_attentions(model: PreTrainedModel, listener: Recorder) -> Iterator[None]:
    """Let somebody listen to the maps that a model returns for `output_attentions=True`; callers never see them."""
    base: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model

    def ask(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        asked = {"output_attentions": True, "return_dict": True} if listener.is_recording else {}
        return args, kwargs | asked

    def read(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        if not listener.is_recording:
            return output
        maps = output.get("attentions") if isinstance(output, ModelOutput) else None
        if not maps or any(x is None for x in maps):
            raise ValueError(f"{type(model).__name__} returns no maps of its attention: it cannot be guided")
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        for weights in maps:
            listener.record(base, heard(weights, mask))
        return type(output)(**{name: x for name, x in output.items() if name != "attentions"})

    with ExitStack() as stack, eager(model):
        for hook in (
            base.register_forward_pre_hook(ask, with_kwargs=True),
            base.register_forward_hook(read, with_kwargs=True),
        ):
            stack.callback(hook.remove)
        yield


def heard(weights: Tensor, mask: Tensor | None) -> LayerRecord:
    """What a map (B, H, N, N) tells. Where task and guides meet is the map itself, in place of queries."""
    given, real = weights, None if mask is None else mask.bool()
    if real is not None:
        weights = weights * (real[:, None, :, None] & real[:, None, None, :])
    return LayerRecord(
        q=given,
        k=given,
        v=given,
        output=given,
        receiving=weights.sum(dim=2),
        padding=real,
        scale=1.0,
        weight_norms=weights.square().sum(dim=3),
        weights=weights,
    )


@contextmanager
def eager(model: PreTrainedModel) -> Iterator[None]:
    """Attention that returns its maps, where a model has several; undone in the end."""
    before = [(part, part.config._attn_implementation) for part in parts(model)]
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        for part, implementation in before:
            part.config._attn_implementation_internal = implementation
