"""Layers that run by torch's kernels and are told later, several at once, what their tokens receive."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.attention.triton import bunch
from headwise.guidance import attaching, waiting
from headwise.guidance.waiting import Waiting
from tests.guidance.test_attaching import batch, build

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Says whether texts are short: then layers wait, on a CPU too, by Triton's interpreter."""

    def say(yes: bool) -> None:
        monkeypatch.setattr(attaching, "short", lambda q: yes)

    return say


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers were told at once, each time."""
    numbers: list[int] = []

    def received(looks: Any) -> list[Tensor]:
        numbers.append(len(looks))
        return own(looks)

    own = bunch.received
    monkeypatch.setattr(waiting, "received", received)
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
    monkeypatch.setattr(waiting, "BUNCH", complete)
    model, inputs = model_and_inputs()
    same(short, model, inputs, hw.MapDiscrimination(0.3), hw.PatternDecorrelation("auto"), hw.Disagreement(0.1))
    assert launched == ([3] if complete > 1 else [1] * 6)  # of which 3 while it is attached and tried


def test_what_the_kernels_cannot_do_is_attended_once_more(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs(dtype=torch.float64)
    same(short, model, inputs, hw.MapDiscrimination(0.3))
    assert not launched


def test_guides_that_need_more_than_received_do_not_wait(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    same(short, model, inputs, hw.MapDiscrimination(0.3), hw.First(0.1))
    assert not launched


def test_checkpointed_layers_do_not_wait(short: Any, launched: list[int]) -> None:
    """What waits is kept, and they are computed again just so that it need not be."""
    model, inputs = model_and_inputs()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    same(short, model, inputs, hw.MapDiscrimination(0.3))
    assert not launched


def test_layers_do_not_wait_where_what_they_save_is_offloaded(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    with torch.autograd.graph.save_on_cpu():
        offloaded = gradients(model, inputs, [hw.MapDiscrimination(0.3)])
    assert not launched
    torch.testing.assert_close(offloaded, gradients(model, inputs, [hw.MapDiscrimination(0.3)]))
    assert launched


def test_saved_tensors_may_lie_elsewhere(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    expected = gradients(model, inputs, [hw.MapDiscrimination(0.3)])
    with hw.guiding(model, [hw.MapDiscrimination(0.3)]) as guided:
        task = model(**inputs).logits.square().mean()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.contiguous().clone(), lambda x: x):
            loss = task + guided.loss(task)
        loss.backward()
    torch.testing.assert_close([x.grad for x in model.parameters() if x.grad is not None], expected[1])


def test_a_forward_pass_without_a_loss_is_forgotten(short: Any, launched: list[int]) -> None:
    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [hw.MapDiscrimination(0.3)]) as guided:
        model(**inputs)
        model(**inputs)
        guided.loss()
    assert launched == [3]


def test_precision_is_that_of_the_forward_pass(short: Any) -> None:
    """Also if the loss is asked for outside autocast."""
    model, inputs = model_and_inputs()
    short(True)
    with hw.guiding(model, [hw.MapDiscrimination(0.3)]) as guided:
        with torch.autocast(DEVICE, torch.float16):
            model(**inputs)
        for layer in guided._layers:
            assert isinstance(layer.receiving, Waiting)
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
    with hw.guiding(model, [hw.MapDiscrimination(0.3)]):
        torch.manual_seed(5)
        guided = model(**inputs).logits
    torch.testing.assert_close(guided, unguided)
