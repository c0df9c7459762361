"""`guiding`: guides in a training loop."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from tests.integrations.tiny_models import KeepRecords, build_batch, build_model


def test_everything_is_restored_after_an_exception() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    model.set_attn_implementation("eager")
    with pytest.raises(KeyError, match="headwise"), hw.guiding(model, [hw.guides.First()]) as guided:
        raise KeyError(model.config._attn_implementation)
    assert model.config._attn_implementation == "eager"
    assert not model._forward_pre_hooks
    model(**inputs)
    with pytest.raises(RuntimeError, match="no attention was recorded"):
        guided.loss()
    with hw.guiding(model, [hw.guides.First()]):
        pass


def test_evaluation_is_not_recorded() -> None:
    model, inputs = build_model("bert"), build_batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        model.eval()
        model(**inputs)
        with pytest.raises(RuntimeError, match="no attention was recorded"):
            guided.loss()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant: bool) -> None:
    model, inputs = build_model("bert").train(), build_batch()

    def compute_gradients() -> list[Tensor]:
        with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
            loss = model(**inputs).logits.sum() + guided.loss()
            loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return gradients

    expected = compute_gradients()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        with pytest.raises(RuntimeError, match="Reentrant gradient checkpointing drops it"):
            compute_gradients()
        return
    torch.testing.assert_close(compute_gradients(), expected)


def test_guided_heads_become_less_similar_than_unguided_ones() -> None:
    """A guide on the other axis of the received attention, which is constant, would have no gradient."""

    def train(guides: list[hw.Guide]) -> tuple[float, float]:
        """Return the mean cosine between heads before and after training."""
        model, inputs, keeper = build_model("bert").train(), build_batch(), KeepRecords()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        similarities = []
        with hw.guiding(model, [keeper, *guides]) as guided:
            for _ in range(15):
                logits = model(**inputs).logits
                loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])) + guided.loss()
                rows = torch.cat([layer.received for layer in keeper.records], dim=1)
                rows = torch.nn.functional.normalize(rows, dim=-1)
                similarities.append((rows @ rows.mT).mean().item())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return similarities[0], similarities[-1]

    before, after = train([hw.guides.PatternDecorrelation(1.0)])
    assert after < before - 0.05
    _, unguided = train([])
    assert unguided > after


@pytest.mark.parametrize("guides", [hw.guides.First(), [hw.guides.First], "mdg"])
def test_guides_must_be_a_list_of_guides(guides: Any) -> None:
    with pytest.raises(TypeError, match="guides must be a list of guides"), hw.guiding(build_model("bert"), guides):
        pass


@pytest.mark.parametrize(
    ("guides", "message"),
    [([], "at least one guide"), ([hw.guides.First(), hw.guides.First()], "two guides have the name 'First'")],
)
def test_guides_must_be_distinct_and_at_least_one(guides: list[hw.Guide], message: str) -> None:
    with pytest.raises(ValueError, match=message), hw.guiding(build_model("bert"), guides):
        pass


@pytest.mark.parametrize("weight", [1.0, "auto"])
def test_guides_of_frozen_layers_are_refused(weight: Any) -> None:
    model, inputs = build_model("bert").train(), build_batch()
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    frozen = hw.guides.First(weight, layers=[0], name="frozen")
    with hw.guiding(model, [hw.guides.First(weight), frozen]) as guided:
        task_loss = model(**inputs).logits.sum()
        with pytest.raises(RuntimeError, match=r"frozen guides has no gradient.*train the guided layers"):
            guided.loss(task_loss)


def test_a_state_of_other_guides_is_refused() -> None:
    model = build_model("bert").train()
    with hw.guiding(model, [hw.guides.First("auto"), hw.guides.Next(0.1)], check=False) as guided:
        state = guided.state_dict()
    message = "weights of First, but the guides with automatic weights are Next"
    with hw.guiding(model, [hw.guides.Next("auto")], check=False) as guided, pytest.raises(ValueError, match=message):
        guided.load_state_dict(state)


def test_layers_and_heads_that_do_not_exist_are_named() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    for guide, message in (
        (hw.guides.First(layers=[3]), "layers contains 3, but the model has 3 layers, 0 to 2"),
        (hw.guides.Next(heads=[-3]), "heads contains -3, but the model has 2 heads, 0 to 1"),
    ):
        with hw.guiding(model, [guide]) as guided:
            model(**inputs)
            with pytest.raises(ValueError, match=message):
                guided.loss()


def gradient_norm(loss: Tensor, tensors: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(loss, tensors, retain_graph=True)
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()


def test_automatic_weights_are_a_share_of_the_tasks_gradient() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    guides = [hw.guides.MapDiscrimination("auto", share=0.3), hw.guides.PatternDecorrelation("auto")]
    with hw.guiding(model, guides) as guided:
        task_loss = model(**inputs).logits.square().mean()
        total = guided.loss(task_loss)
    assert guides[0].weight > 0
    weighted = sum(guide.weight * float(guided.terms[guide.name]) for guide in guides)
    assert weighted == pytest.approx(total.item())
    keeper = KeepRecords()
    with hw.guiding(model, [hw.guides.MapDiscrimination(guides[0].weight), keeper]) as guided:
        task_loss = model(**inputs).logits.square().mean()
        loss = guided.loss()
        queries = [layer.q for layer in keeper.records]
        ratio = float(gradient_norm(loss, queries) / gradient_norm(task_loss, queries))
        assert ratio == pytest.approx(0.3 / 2, rel=1e-3)  # two guides divide the share


@pytest.mark.parametrize("task_loss", [None, 0.5, torch.tensor(0.5)], ids=["none", "number", "no-graph"])
def test_automatic_weights_need_the_tasks_loss(task_loss: Any) -> None:
    model, inputs = build_model("bert").train(), build_batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination("auto")]) as guided:
        model(**inputs)
        with pytest.raises(ValueError, match=r"call guided.loss\(task_loss\) with the task's loss"):
            guided.loss(task_loss)


def test_automatic_weights_with_frozen_layers_and_overflow() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    guide = hw.guides.MapDiscrimination("auto")
    with hw.guiding(model, [guide]) as guided:
        for factor in (1.0, torch.inf):
            task_loss = model(**inputs).logits.square().mean() * factor
            guided.loss(task_loss)
            assert 0 < guide.weight < torch.inf


def test_guiding_twice_is_refused_and_does_not_disturb_the_first() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        with pytest.raises(RuntimeError, match="is already guided"), hw.guiding(model, [hw.guides.First()]):
            pass
        model(**inputs)
        assert guided.loss() > 0


def test_a_copy_of_a_guided_model_is_not_guided() -> None:
    """Models are copied during training, to average weights or to keep the best."""
    model, inputs = build_model("bert"), build_batch()
    with hw.guiding(model.train(), [hw.guides.First()]) as guided:
        model(**inputs)
        copied = copy.deepcopy(model)
        copied(**inputs)
        assert guided.loss().requires_grad  # that of the model's own forward pass
        with hw.guiding(copied, [hw.guides.First()]) as other:
            copied(**inputs)
            assert other.loss().requires_grad
            with pytest.raises(RuntimeError, match="no attention was recorded"):
                guided.loss()
    torch.testing.assert_close(copied.eval()(**inputs)[0], model.eval()(**inputs)[0])


def test_data_parallel_is_refused() -> None:
    parallel = nn.DataParallel(build_model("bert"))
    with pytest.raises(ValueError, match=r"use DDP \(torchrun\)"), hw.guiding(parallel, [hw.guides.First()]):
        pass
