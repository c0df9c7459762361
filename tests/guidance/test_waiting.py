"""Layers that run by torch's kernels and are told later, several at once, what their tokens receive."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

import headwise as hw
from headwise.attention.triton_backend import multi_layer_received
from headwise.integrations import LayerRecord, RecordField, deferred, hf_attention
from headwise.integrations.deferred import DeferredReceived
from tests.guidance.test_attaching import batch, build

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether texts are short: then layers wait, on a CPU too, by Triton's interpreter."""

    def say(yes: bool) -> None:
        monkeypatch.setattr(hf_attention, "short", lambda q: yes)

    return say


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers were told at once, each time."""
    numbers: list[int] = []

    def received(looks: Any) -> list[Tensor]:
        numbers.append(len(looks))
        return own(looks)

    own = multi_layer_received.multi_layer_received
    monkeypatch.setattr(deferred, "multi_layer_received", received)
    return numbers


def model_and_inputs(name: str = "bert", dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Tensor]]:
    model = build(name).train().to(DEVICE, dtype)
    return model, {key: x.to(DEVICE) for key, x in batch().items()}


def gradients(model: Any, inputs: dict[str, Tensor], guides: list[hw.Guide]) -> tuple[Tensor, list[Tensor]]:
    with hw.guiding(model, guides) as guided:
        task = model(**inputs).logits.square().mean()
        loss = task + guided.loss(task)
        loss.backward()
    found = [x.grad for x in model.parameters() if x.grad is not None]
    model.zero_grad()
    return loss.detach(), found


def same(short: Callable[[bool], None], model: Any, inputs: dict[str, Tensor], *guides: hw.Guide) -> None:
    """Whether loss and gradients are the same later as at once."""
    short(False)
    expected, exact = gradients(model, inputs, list(guides))
    short(True)
    found, ours = gradients(model, inputs, list(guides))
    torch.testing.assert_close(found, expected)
    largest = max(float(x.abs().max()) for x in exact)
    for mine, true in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, true, atol=1e-5 * largest, rtol=1e-3)


@pytest.mark.parametrize("complete", [1, 2**28], ids=["one-by-one", "together"])
def test_bunches_of_any_size(short: Any, launched: list[int], complete: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "BUNCH", complete)
    model, inputs = model_and_inputs()
    same(
        short,
        model,
        inputs,
        hw.guides.MapDiscrimination(0.3),
        hw.guides.PatternDecorrelation("auto"),
        hw.guides.Disagreement(0.1),
    )
    assert launched == ([3] if complete > 1 else [1] * 6)  # of which 3 while it is attached and tried


def test_what_the_kernels_cannot_do_is_attended_once_more(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs(dtype=torch.float64)
    same(short, model, inputs, hw.guides.MapDiscrimination(0.3))
    assert not launched


def test_guides_that_need_more_than_received_do_not_wait(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    same(short, model, inputs, hw.guides.MapDiscrimination(0.3), hw.guides.First(0.1))
    assert not launched


def test_checkpointed_layers_do_not_wait(short: Any, launched: list[int]) -> None:
    """What waits is kept, and they are computed again just so that it need not be."""
    model, inputs = model_and_inputs()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    same(short, model, inputs, hw.guides.MapDiscrimination(0.3))
    assert not launched


def test_layers_do_not_wait_where_what_they_save_is_offloaded(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    with torch.autograd.graph.save_on_cpu():
        offloaded = gradients(model, inputs, [hw.guides.MapDiscrimination(0.3)])
    assert not launched
    torch.testing.assert_close(offloaded, gradients(model, inputs, [hw.guides.MapDiscrimination(0.3)]))
    assert launched


def test_saved_tensors_may_lie_elsewhere(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    expected = gradients(model, inputs, [hw.guides.MapDiscrimination(0.3)])
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        task = model(**inputs).logits.square().mean()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
            loss = task + guided.loss(task)
        loss.backward()
    torch.testing.assert_close([x.grad for x in model.parameters() if x.grad is not None], expected[1])


def test_a_bunch_that_is_completed_without_gradients_keeps_those_of_others(
    short: Any, launched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = model_and_inputs()
    middle = model.bert.encoder.layer[1]
    forward = middle.forward
    middle.forward = lambda *given, **options: torch.no_grad()(forward)(*given, **options)
    size = inputs["input_ids"].numel() * model.config.hidden_size * 4
    monkeypatch.setattr(deferred, "BUNCH", 2 * 2 * size)  # complete with layer 1
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)], check=False) as guided:
        model(**inputs)
        guided.loss().backward()
    assert launched == [1, 1, 1]  # those with a gradient and those without, then the last
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_checkpointing_that_drops_the_last_layers_gradient_is_refused(short: Any) -> None:
    model, inputs = model_and_inputs()
    last = model.bert.encoder.layer[2]
    forward = last.forward

    def checkpointed(x: Tensor, *given: Any, **options: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(lambda y: forward(y, *given, **options), x, use_reentrant=True)

    last.forward = checkpointed
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)], check=False) as guided:
        model(**inputs)
        with pytest.raises(RuntimeError, match="Re-entrant gradient checkpointing drops it"):
            guided.loss()


def test_layers_of_two_kinds_in_turn_are_told_in_two_launches(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    model.bert.encoder.layer[1].attention.self.scaling = 0.5
    short(True)
    gradients(model, inputs, [hw.guides.MapDiscrimination(0.3)])
    assert launched == [2, 1]


def test_a_layer_that_was_read_early_is_not_told_again(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        model(**inputs)
        first = guided._layers[0]
        early = first.received
        guided.loss()
        assert first.received is early
    assert launched == [1, 2]


def test_queries_and_keys_of_different_precision(short: Any) -> None:
    model, inputs = model_and_inputs()
    for module in model.modules():
        if type(module).__name__ == "BertSelfAttention":
            module.key.register_forward_hook(lambda own, given, output: output.float())
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
        assert guided.loss().isfinite()


def test_a_guide_of_ones_own_computes_in_autocast(short: Any) -> None:
    class Mine(hw.Guide):
        needs = frozenset({"states"})

        def term(self, observed: Any) -> Tensor:
            x = observed.layers[0].output
            return torch.nn.functional.linear(x, torch.ones(1, x.shape[-1], device=x.device)).square().mean()

    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [Mine(0.3)]) as guided, torch.autocast(DEVICE, torch.float16):
        model(**inputs)
        assert guided.loss().isfinite()


def test_a_forward_pass_without_a_loss_is_forgotten(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        model(**inputs)
        model(**inputs)
        guided.loss()
    assert launched == [3]


def test_precision_is_that_of_the_forward_pass(short: Any) -> None:
    """Also if the loss is asked for outside autocast."""
    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
        for layer in guided._layers:
            assert isinstance(layer.receiving, DeferredReceived)
            assert layer.receiving.look.q.dtype == torch.float16
        loss = guided.loss()
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(x.grad.isfinite().all() for x in model.parameters() if x.grad is not None)


def test_unguided_dropout_is_drawn_as_if_unguided(short: Any) -> None:
    """Torch's own kernels run, so a guided and an unguided model drop the same."""
    model, inputs = model_and_inputs()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    model.set_attn_implementation("sdpa")
    torch.manual_seed(5)
    unguided = model(**inputs).logits
    short(True)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.3)]):
        torch.manual_seed(5)
        guided = model(**inputs).logits
    torch.testing.assert_close(guided, unguided)


class Ear:
    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.heard: list[LayerRecord] = []

    def record(self, layer: torch.nn.Module, heard: LayerRecord) -> None:
        self.heard.append(heard)


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({"scaling": torch.tensor(0.25)}, True),
        ({"padding": 10}, False),
        ({"key_heads": 1}, True),
        ({"key_heads": 1, "padding": 8}, False),
        ({"key_heads": 1, "value_width": 8}, False),
    ],
    ids=["scaling-tensor", "mask-longer-than-keys", "grouped", "grouped-padded", "grouped-uneven"],
)
def test_layers_that_may_wait(short: Any, options: dict[str, Any], waits: bool) -> None:
    """Whether they do or not, output and received attention are the same."""
    n, key_heads, length = 8, options.get("key_heads", 2), options.get("padding")
    q, k = torch.randn(2, 2, n, 16, device=DEVICE), torch.randn(2, key_heads, n, 16, device=DEVICE)
    v = torch.randn(2, key_heads, n, options.get("value_width", 16), device=DEVICE)
    mask = None
    if length is not None:
        mask = (torch.arange(length, device=DEVICE) < torch.tensor([[length], [5]], device=DEVICE))[:, None, None]

    def run(soon: bool) -> tuple[Tensor, LayerRecord]:
        layer, ear = torch.nn.Module(), Ear()
        layer.__dict__[hf_attention.LISTENER] = ear
        short(not soon)
        output, _ = hf_attention.attention(layer, q, k, v, mask, scaling=options.get("scaling"), is_causal=False)
        return output, ear.heard[0]

    (expected, at_once), (found, later) = run(True), run(False)
    assert isinstance(later.receiving, DeferredReceived) is waits
    real = at_once.real
    torch.testing.assert_close(found[real], expected[real])
    torch.testing.assert_close(later.received, at_once.received)
