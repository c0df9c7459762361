"""Guided training steps with precisions, layers and hooks that are unusual."""

from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from transformers import AttentionInterface

import headwise as hw

pytest.importorskip("accelerate")  # of the extra hf
from headwise.guides import ForwardRecord
from headwise.integrations import LayerRecord, RecordField
from headwise.integrations.recording import RECORDER
from tests.integrations.tiny_models import build_batch, build_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_and_inputs(family: str = "bert", dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Tensor]]:
    model = build_model(family).train().to(DEVICE, dtype)
    return model, {name: x.to(DEVICE) for name, x in build_batch().items()}


def step_gradients(model: Any, inputs: dict[str, Tensor], *guides: hw.Guide) -> list[Tensor]:
    """Return all gradients of a training step."""
    with hw.guiding(model, guides) as guided:
        task_loss = model(**inputs).logits.square().mean()
        (task_loss + guided.loss(task_loss)).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return gradients


def test_saved_tensors_may_be_copied_or_offloaded() -> None:
    model, inputs = model_and_inputs()
    guide = hw.guides.MapDiscrimination(0.3)
    expected = step_gradients(model, inputs, guide)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
        copied = step_gradients(model, inputs, guide)
    with torch.autograd.graph.save_on_cpu():
        offloaded = step_gradients(model, inputs, guide)
    torch.testing.assert_close(copied, expected)
    torch.testing.assert_close(offloaded, expected)


def test_reentrant_checkpointing_of_the_last_layer_is_refused() -> None:
    model, inputs = model_and_inputs()
    last = model.bert.encoder.layer[2]
    forward = last.forward

    def checkpointed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: forward(y, *args, **kwargs), x, use_reentrant=True)

    last.forward = checkpointed
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)], check=False) as guided:
        model(**inputs)
        with pytest.raises(RuntimeError, match="Reentrant gradient checkpointing drops it"):
            guided.loss()


def test_queries_and_keys_of_different_precision() -> None:
    model, inputs = model_and_inputs()
    for module in model.modules():
        if type(module).__name__ == "BertSelfAttention":
            module.key.register_forward_hook(lambda module, args, output: output.float())
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
        assert guided.loss().isfinite()


def test_a_custom_guide_computes_in_autocast() -> None:
    class OutputNorm(hw.Guide):
        required_fields = frozenset({"states"})

        def term(self, record: ForwardRecord) -> Tensor:
            x = record.layers[0].output
            return torch.nn.functional.linear(x, torch.ones(1, x.shape[-1], device=x.device)).square().mean()

    model, inputs = model_and_inputs()
    with hw.guiding(model, [OutputNorm(0.3)]) as guided, torch.autocast(DEVICE, torch.float16):
        model(**inputs)
        assert guided.loss().isfinite()


def test_precision_is_that_of_the_forward_pass() -> None:
    """The loss is the same inside and outside autocast."""
    model, inputs = model_and_inputs()
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
            expected = guided.loss()
            model(**inputs)
        loss = guided.loss()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, atol=1e-7, rtol=0.0)
    loss.backward()
    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)


def test_only_the_last_forward_pass_counts() -> None:
    model, inputs = model_and_inputs()
    other_inputs = {name: x[:2] for name, x in inputs.items()}
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        model(**inputs)
        expected = guided.loss()
        model(**other_inputs)
        model(**inputs)
        torch.testing.assert_close(guided.loss(), expected)


class ListRecorder:
    """Keeps all records."""

    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.records: list[LayerRecord] = []

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize(
    "options",
    [
        {"scaling": torch.tensor(0.25)},
        {"mask_length": 10},
        {"key_heads": 1},
        {"key_heads": 1, "mask_length": 8},
        {"key_heads": 1, "value_width": 8},
    ],
    ids=["scaling-tensor", "mask-longer-than-keys", "grouped", "grouped-padded", "grouped-uneven"],
)
def test_output_and_received_attention_of_unusual_layers(options: dict[str, Any]) -> None:
    n, heads, key_heads, mask_length = 8, 2, options.get("key_heads", 2), options.get("mask_length")
    q, k = torch.randn(2, heads, n, 16, device=DEVICE), torch.randn(2, key_heads, n, 16, device=DEVICE)
    v = torch.randn(2, key_heads, n, options.get("value_width", 16), device=DEVICE)
    mask, real = None, torch.ones(2, n, dtype=torch.bool, device=DEVICE)
    if mask_length is not None:
        lengths = torch.tensor([[mask_length], [5]], device=DEVICE)
        mask = (torch.arange(mask_length, device=DEVICE) < lengths)[:, None, None]
        real = mask[:, 0, 0, :n]
    layer, recorder = nn.Module(), ListRecorder()
    layer.__dict__[RECORDER] = recorder
    scaling = options.get("scaling")
    output, _ = AttentionInterface()["headwise"](layer, q, k, v, mask, scaling=scaling, is_causal=False)

    scores = q @ k.expand(-1, heads, -1, -1).mT * (16**-0.5 if scaling is None else float(scaling))
    weights = scores.masked_fill(~real[:, None, None], float("-inf")).softmax(dim=-1)
    expected = (weights @ v.expand(-1, heads, -1, -1)).transpose(1, 2)
    torch.testing.assert_close(output[real], expected[real])
    torch.testing.assert_close(recorder.records[0].received, (weights * real[:, None, :, None]).sum(dim=2))
