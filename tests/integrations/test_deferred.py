"""Deferred computation of received attention gives the same losses and gradients as direct computation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from transformers import AttentionInterface, TrainingArguments

import headwise as hw

pytest.importorskip("accelerate")  # of the extra hf
pytest.importorskip("triton")
from headwise.guides import ForwardRecord
from headwise.integrations import LayerRecord, RecordField, deferred, recording, use_headwise_attention
from headwise.integrations.recording import RECORDER
from tests.integrations.tiny_models import KeepRecords, build_batch, build_model
from tests.short_form import choose_size

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SetDeferral = Callable[[bool], None]


@pytest.fixture
def set_deferral(monkeypatch: pytest.MonkeyPatch) -> SetDeferral:
    """Turns deferral on or off. On a CPU, the kernels run in Triton's interpreter."""

    def set_deferral(is_enabled: bool) -> None:
        monkeypatch.setattr(deferred, "is_short", lambda q: is_enabled)

    return set_deferral


def model_and_inputs(family: str = "bert", dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Tensor]]:
    model = build_model(family).train().to(DEVICE, dtype)
    return model, {name: x.to(DEVICE) for name, x in build_batch().items()}


def guided_step(model: Any, inputs: dict[str, Tensor], *guides: hw.Guide) -> tuple[Tensor, list[Tensor], list[bool]]:
    """Return the loss and all gradients of a training step, and which layers were deferred."""
    keeper = KeepRecords()
    with hw.guiding(model, [*guides, keeper]) as guided:
        task_loss = model(**inputs).logits.square().mean()
        loss = task_loss + guided.loss(task_loss)
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return loss.detach(), gradients, [layer.is_deferred for layer in keeper.records]


def check_same_as_direct(
    set_deferral: SetDeferral, model: Any, inputs: dict[str, Tensor], *guides: hw.Guide, is_deferred: bool = True
) -> None:
    set_deferral(False)
    expected_loss, expected_gradients, direct = guided_step(model, inputs, *guides)
    set_deferral(True)
    loss, gradients, flags = guided_step(model, inputs, *guides)
    assert direct == [False] * 3
    assert flags == [is_deferred] * 3
    torch.testing.assert_close(loss, expected_loss)
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-5 * largest, rtol=1e-3)


@pytest.mark.parametrize("max_bytes", [pytest.param(1, marks=pytest.mark.long), 2**28], ids=["one-by-one", "one-batch"])
def test_batches_of_any_size(set_deferral: Any, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "MAX_BATCH_BYTES", max_bytes)
    model, inputs = model_and_inputs()
    guides = [
        hw.guides.MapDiscrimination(0.3),
        hw.guides.PatternDecorrelation("auto"),
        hw.guides.Disagreement(0.1),
    ]
    check_same_as_direct(set_deferral, model, inputs, *guides)


def test_inputs_that_the_kernels_do_not_support(set_deferral: Any) -> None:
    model, inputs = model_and_inputs(dtype=torch.float64)
    check_same_as_direct(set_deferral, model, inputs, hw.guides.MapDiscrimination(0.3))


def test_layers_with_different_scales(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    model.bert.encoder.layer[1].attention.self.scaling = 0.5
    check_same_as_direct(set_deferral, model, inputs, hw.guides.MapDiscrimination(0.3))


def test_guides_that_read_more_than_received_attention_are_direct(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    guides = [hw.guides.MapDiscrimination(0.3), hw.guides.First(0.1)]
    check_same_as_direct(set_deferral, model, inputs, *guides, is_deferred=False)


def test_checkpointed_layers_are_direct(set_deferral: Any) -> None:
    """Deferred queries and keys would stay in memory, which checkpointing is meant to save."""
    model, inputs = model_and_inputs()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    check_same_as_direct(set_deferral, model, inputs, hw.guides.MapDiscrimination(0.3), is_deferred=False)


def test_layers_with_offloaded_tensors_are_direct(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    set_deferral(True)
    loss, gradients, flags = guided_step(model, inputs, hw.guides.MapDiscrimination(0.3))
    with torch.autograd.graph.save_on_cpu():
        offloaded_loss, offloaded_gradients, offloaded_flags = guided_step(
            model, inputs, hw.guides.MapDiscrimination(0.3)
        )
    assert flags == [True] * 3
    assert offloaded_flags == [False] * 3
    torch.testing.assert_close(offloaded_loss, loss)
    torch.testing.assert_close(offloaded_gradients, gradients)


def test_saved_tensors_may_be_copied(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    set_deferral(True)
    _, expected, _ = guided_step(model, inputs, hw.guides.MapDiscrimination(0.3))
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        task_loss = model(**inputs).logits.square().mean()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
            loss = task_loss + guided.loss(task_loss)
        loss.backward()
    torch.testing.assert_close([x.grad for x in model.parameters() if x.grad is not None], expected)


def test_a_batch_that_fills_without_gradients_keeps_those_of_other_layers(
    set_deferral: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = model_and_inputs()
    middle = model.bert.encoder.layer[1]
    forward = middle.forward
    middle.forward = lambda *args, **kwargs: torch.no_grad()(forward)(*args, **kwargs)
    query_bytes = inputs["input_ids"].numel() * model.config.hidden_size * 4
    monkeypatch.setattr(deferred, "MAX_BATCH_BYTES", 2 * 2 * query_bytes)  # full with the middle layer

    def first_layer_gradient(is_deferred: bool) -> Tensor:
        set_deferral(is_deferred)
        model.zero_grad()
        with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)], check=False) as guided:
            model(**inputs)
            guided.loss().backward()
        gradient: Tensor = model.bert.encoder.layer[0].attention.self.query.weight.grad
        return gradient

    expected = first_layer_gradient(False)
    assert expected.abs().sum() > 0
    largest = float(expected.abs().max())
    torch.testing.assert_close(first_layer_gradient(True), expected, atol=1e-5 * largest, rtol=1e-3)


def test_reentrant_checkpointing_of_the_last_layer_is_refused(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    last = model.bert.encoder.layer[2]
    forward = last.forward

    def checkpointed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: forward(y, *args, **kwargs), x, use_reentrant=True)

    last.forward = checkpointed
    set_deferral(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)], check=False) as guided:
        model(**inputs)
        with pytest.raises(RuntimeError, match="Reentrant gradient checkpointing drops it"):
            guided.loss()


def test_queries_and_keys_of_different_precision(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    for module in model.modules():
        if type(module).__name__ == "BertSelfAttention":
            module.key.register_forward_hook(lambda module, args, output: output.float())
    set_deferral(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
        assert guided.loss().isfinite()


def test_a_custom_guide_computes_in_autocast(set_deferral: Any) -> None:
    class OutputNorm(hw.Guide):
        required_fields = frozenset({"states"})

        def term(self, record: ForwardRecord) -> Tensor:
            x = record.layers[0].output
            return torch.nn.functional.linear(x, torch.ones(1, x.shape[-1], device=x.device)).square().mean()

    model, inputs = model_and_inputs()
    set_deferral(True)
    with hw.guiding(model, [OutputNorm(0.3)]) as guided, torch.autocast(DEVICE, torch.float16):
        model(**inputs)
        assert guided.loss().isfinite()


def test_precision_is_that_of_the_forward_pass(set_deferral: Any) -> None:
    """The loss is the same inside and outside autocast."""
    model, inputs = model_and_inputs()
    set_deferral(True)
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


def test_only_the_last_forward_pass_counts(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    other_inputs = {name: x[:2] for name, x in inputs.items()}
    guides = [hw.guides.MapDiscrimination(0.3)]
    set_deferral(True)
    with hw.guiding(model, guides) as guided:
        model(**inputs)
        expected = guided.loss()
        model(**other_inputs)
        model(**inputs)
        torch.testing.assert_close(guided.loss(), expected)


def test_dropout_is_that_of_the_unguided_model(set_deferral: Any) -> None:
    """Deferred layers run with torch's kernels, which draw the same dropout as without guides."""
    model, inputs = model_and_inputs()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    model.set_attn_implementation("sdpa")
    torch.manual_seed(5)
    expected = model(**inputs).logits
    set_deferral(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]):
        torch.manual_seed(5)
        logits = model(**inputs).logits
    torch.testing.assert_close(logits, expected)


def test_trainer_logs_the_same_losses(set_deferral: Any, tmp_path: Path) -> None:
    num_steps = choose_size(short=1, long=3)
    _, inputs = model_and_inputs()
    dataset = [{name: x[i].cpu() for name, x in inputs.items()} | {"labels": i} for i in range(3)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=num_steps, logging_steps=1, report_to=[], use_cpu=DEVICE == "cpu", save_strategy="no"
    )

    def train(is_deferred: bool) -> list[list[float]]:
        set_deferral(is_deferred)
        trainer = hw.GuidedTrainer(
            model=build_model("bert"),
            args=arguments,
            train_dataset=dataset,
            guides=[hw.guides.MapDiscrimination("auto"), hw.guides.Disagreement(0.1)],
        )
        trainer.train()
        names = ("loss", "guide/MapDiscrimination", "guide/MapDiscrimination/weight", "guide/Disagreement")
        return [[logs[name] for name in names] for logs in trainer.state.log_history if "loss" in logs]

    logs = train(True)
    assert len(logs) == num_steps
    torch.testing.assert_close(torch.tensor(logs), torch.tensor(train(False)), atol=1e-4, rtol=1e-3)


class ListRecorder:
    """Keeps all records."""

    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.records: list[LayerRecord] = []

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        self.records.append(record)


def test_received_attention_is_computed_once(set_deferral: Any) -> None:
    model, inputs = model_and_inputs()
    recorder = ListRecorder()
    set_deferral(True)
    with use_headwise_attention(model), recording(model, recorder):
        model(**inputs)
    assert all(record.is_deferred for record in recorder.records)
    assert all(record.received is record.received for record in recorder.records)


@pytest.mark.parametrize(
    ("options", "is_deferred"),
    [
        ({"scaling": torch.tensor(0.25)}, True),
        ({"mask_length": 10}, False),
        ({"key_heads": 1}, True),
        ({"key_heads": 1, "mask_length": 8}, False),
        ({"key_heads": 1, "value_width": 8}, False),
    ],
    ids=["scaling-tensor", "mask-longer-than-keys", "grouped", "grouped-padded", "grouped-uneven"],
)
def test_output_and_received_attention_of_unusual_layers(
    set_deferral: Any, options: dict[str, Any], is_deferred: bool
) -> None:
    n, key_heads, mask_length = 8, options.get("key_heads", 2), options.get("mask_length")
    q, k = torch.randn(2, 2, n, 16, device=DEVICE), torch.randn(2, key_heads, n, 16, device=DEVICE)
    v = torch.randn(2, key_heads, n, options.get("value_width", 16), device=DEVICE)
    mask = None
    if mask_length is not None:
        lengths = torch.tensor([[mask_length], [5]], device=DEVICE)
        mask = (torch.arange(mask_length, device=DEVICE) < lengths)[:, None, None]

    def run(is_enabled: bool) -> tuple[Tensor, LayerRecord]:
        layer, recorder = nn.Module(), ListRecorder()
        layer.__dict__[RECORDER] = recorder
        set_deferral(is_enabled)
        forward = AttentionInterface()["headwise"]
        output, _ = forward(layer, q, k, v, mask, scaling=options.get("scaling"), is_causal=False)
        return output, recorder.records[0]

    (expected, direct), (output, record) = run(False), run(True)
    assert record.is_deferred is is_deferred
    real = direct.real
    torch.testing.assert_close(output[real], expected[real])
    torch.testing.assert_close(record.received, direct.received)
