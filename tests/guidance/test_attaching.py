"""Our attention in other people's models: the same outputs, and what heads do as their own maps say."""

import copy
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.integrations.hf_attention import LISTENER, example_inputs, parts
from tests.guidance.models import FAMILIES, OTHERS


def batch() -> dict[str, Tensor]:
    ids = torch.randint(3, 40, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 8:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def build(name: str) -> Any:
    torch.manual_seed(0)
    model = (FAMILIES | OTHERS)[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # else maps are all but even
    for module in model.modules():  # the tests compare gradients in training mode
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    return model


def first(output: Any, mask: Tensor) -> Tensor:
    """Logits, or the hidden states of real tokens."""
    found: Tensor = next(x for x in output.values() if isinstance(x, Tensor))
    return found[mask.bool()] if found.dim() == 3 else found


def eager_maps(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    return first(output, inputs["attention_mask"]), list(output.attentions)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "later"])
def test_outputs_received_and_gradients_are_the_models_own(
    name: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headwise.integrations.hf_attention.short", lambda q: waits
    )  # on a CPU too, by Triton's interpreter
    device = "cuda" if waits and torch.cuda.is_available() else "cpu"
    model, inputs = build(name).train().to(device), {key: x.to(device) for key, x in batch().items()}
    model.set_attn_implementation("sdpa")
    own = first(model(**inputs), inputs["attention_mask"])
    with hw.guiding(model, [hw.guides.MapDiscrimination(1.0), hw.guides.PatternDecorrelation(0.5)]) as guided:
        found = first(model(**inputs), inputs["attention_mask"])
        layers = list(guided._layers)
        loss = guided.loss()
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, own, atol=1e-4, rtol=1e-4)

    _, maps = eager_maps(model, inputs)
    assert len(layers) == len(maps)
    real = inputs["attention_mask"].bool()
    vectors = []
    for layer, weights in zip(layers, maps, strict=True):
        received = (weights * real[:, None, :, None]).sum(dim=2)
        torch.testing.assert_close(layer.received, received, atol=1e-4, rtol=1e-3)
        assert torch.equal(layer.real, real)
        vectors.append(received * real[:, None])
    rows = torch.nn.functional.normalize(torch.cat(vectors, dim=1), dim=-1)
    gram, length = rows @ rows.mT, real.sum(dim=1)
    heads = rows.shape[1]
    mdg = (gram.logsumexp(-1) - gram.diagonal(dim1=1, dim2=2)).mean()
    tokens = rows.mT @ rows - torch.diag_embed(real.float())
    pdg = (tokens.square().sum(dim=(1, 2)) / heads**2).mean()
    torch.testing.assert_close(loss, mdg + 0.5 * pdg, atol=1e-4, rtol=1e-4)
    assert length.shape == (3,)
    expected = torch.autograd.grad(mdg + 0.5 * pdg, list(model.parameters()), allow_unused=True, materialize_grads=True)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    assert largest > 0
    for mine, true in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, true, atol=2e-4 * largest, rtol=1e-3)


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_does_not_ask_the_interface_is_found_out(name: str) -> None:
    model = build(name)
    with pytest.raises(hw.NotThroughTheInterface, match="does not go through"), hw.guiding(model, [hw.guides.First()]):
        pass
    with pytest.raises(hw.NotThroughTheInterface):
        hw.retrofit(model)


def test_all_is_undone_on_leaving_also_by_an_exception() -> None:
    model = build("bert")
    model.set_attn_implementation("eager")
    with pytest.raises(KeyError), hw.guiding(model, [hw.guides.First()]):
        raise KeyError({part.config._attn_implementation for part in parts(model)})
    assert {part.config._attn_implementation for part in parts(model)} == {"eager"}
    assert not any(LISTENER in module.__dict__ for module in model.modules())
    assert not model._forward_pre_hooks


def test_evaluation_hears_nothing() -> None:
    model, inputs = build("bert"), batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        model.eval()
        model(**inputs)
        assert not guided._layers
        with pytest.raises(RuntimeError, match="no attention was heard"):
            guided.loss()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model, inputs = build("bert").train(), batch()
    guides = [hw.guides.MapDiscrimination()]

    def gradients() -> list[Tensor]:
        with hw.guiding(model, guides) as guided:
            loss = model(**inputs).logits.sum() + guided.loss()
            loss.backward()
        found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return found

    expected = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        with pytest.raises(RuntimeError, match="Re-entrant gradient checkpointing drops it"):
            gradients()
        return
    torch.testing.assert_close(gradients(), expected)


def test_guided_heads_grow_apart_and_unguided_ones_do_not() -> None:
    """The known trap: a guide on the other axis, which is constant, would have no gradient."""

    def likeness(guides: list[hw.Guide]) -> tuple[float, float]:
        model, inputs = build("bert").train(), batch()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        found = []
        with hw.guiding(model, [hw.guides.MapDiscrimination(0.0), *guides]) as guided:
            for _ in range(15):
                logits = model(**inputs).logits
                rows = torch.cat([layer.received for layer in guided._layers], dim=1)
                rows = torch.nn.functional.normalize(rows, dim=-1)
                found.append(float((rows @ rows.mT).mean()))
                loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])) + guided.loss()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return found[0], found[-1]

    before, after = likeness([hw.guides.PatternDecorrelation(1.0)])
    assert after < before - 0.05
    before, unguided = likeness([])
    assert unguided > after


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.guides.MapDiscrimination(-1.0), "weight must be 0 or more"),
        (lambda: hw.guides.MapDiscrimination(temperature=0.0), "temperature must be above 0"),
        (
            lambda: hw.guides.PatternDecorrelation(reduction=cast(Any, "sum")),
            "reduction must be one of mean, paper, released",
        ),
        (lambda: hw.guides.Next(schedule=cast(Any, "cosine")), "schedule must be one of"),
        (lambda: hw.guides.First(layers=[]), "layers must be numbers"),
        (lambda: hw.guides.Disagreement(on=cast(Any, "value")), "on must be one of"),
    ],
)
def test_a_guides_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("guides", [hw.guides.First(), [hw.guides.First], "mdg"])
def test_what_is_no_list_of_guides_is_refused(guides: Any) -> None:
    with pytest.raises(TypeError, match="guides must be a list of guides"), hw.guiding(build("bert"), guides):
        pass


def test_layers_and_heads_that_are_not_there_are_named() -> None:
    model, inputs = build("bert").train(), batch()
    for guide, message in (
        (hw.guides.First(layers=[3]), "layers has 3, but the model has 3"),
        (hw.guides.Next(heads=[-3]), "heads"),
    ):
        with hw.guiding(model, [guide]) as guided:
            model(**inputs)
            with pytest.raises(ValueError, match=message):
                guided.loss()


def test_automatic_weights_are_a_share_of_the_tasks_gradient() -> None:
    model, inputs = build("bert").train(), batch()
    guides = [hw.guides.MapDiscrimination("auto", share=0.3), hw.guides.PatternDecorrelation("auto")]
    with hw.guiding(model, guides) as guided:
        task = model(**inputs).logits.square().mean()
        queries = [layer.q for layer in guided._layers]
        total = guided.loss(task)

        def length(loss: Tensor) -> Tensor:
            gradients = torch.autograd.grad(loss, queries, retain_graph=True)
            return torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()

        assert guides[0].weight > 0
        weighted = sum(guide.weight * float(guided.terms[guide.name]) for guide in guides)
        assert weighted == pytest.approx(float(total))
    with hw.guiding(model, [hw.guides.MapDiscrimination(guides[0].weight)]) as alone:
        again = model(**inputs).logits.square().mean()
        queries = [layer.q for layer in alone._layers]
        assert float(length(alone.loss()) / length(again)) == pytest.approx(0.3 / 2, rel=1e-3)  # two guides divide it
    other: Any
    for other in (None, 0.5, torch.tensor(0.5)):
        with hw.guiding(model, [hw.guides.MapDiscrimination("auto")]) as guided:
            model(**inputs)
            with pytest.raises(ValueError, match=r"give guided.loss\(…\) the task's loss, with its graph"):
                guided.loss(other)


def test_automatic_weights_with_frozen_layers_and_a_batch_that_overflowed() -> None:
    model, inputs = build("bert").train(), batch()
    model.bert.embeddings.requires_grad_(False)
    model.bert.encoder.layer[0].requires_grad_(False)
    guide = hw.guides.MapDiscrimination("auto")
    with hw.guiding(model, [guide]) as guided:
        for factor in (1.0, torch.inf):
            task = model(**inputs).logits.square().mean() * factor
            guided.loss(task)
            assert 0 < guide.weight < torch.inf


def test_arguments_by_place_and_additive_masks_are_understood() -> None:
    model, inputs = build("bert").train(), batch()
    mask = inputs["attention_mask"]
    additive = torch.zeros(3, 1, 9, 9).masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)
    losses = []
    with hw.guiding(model, [hw.guides.PatternDecorrelation(), hw.guides.Delimiter(tokens=[5])]) as guided:
        for given in (mask, additive):
            model(inputs["input_ids"], given)
            assert torch.equal(guided._layers[0].real, mask.bool())
            losses.append(guided.loss())
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_of_an_encoder_and_decoder_the_encoder_is_guided(name: str) -> None:
    import transformers

    hf: Any = transformers
    torch.manual_seed(0)
    if name == "bart":
        sizes = {f"{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "attention_heads")}
        widths = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0}
        model = hf.BartForConditionalGeneration(hf.BartConfig(d_model=16, vocab_size=40, **sizes, **widths))
    else:
        config = hf.T5Config(d_model=16, d_kv=8, num_heads=2, num_layers=2, d_ff=16, vocab_size=40, dropout_rate=0.0)
        model = hf.T5ForConditionalGeneration(config)
    inputs = batch() | {"decoder_input_ids": torch.randint(3, 40, (3, 9))}
    own = model.train()(**inputs).logits
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        torch.testing.assert_close(model(**inputs).logits, own, atol=1e-5, rtol=1e-4)
        assert len(guided._layers) == 2
        model(**(inputs | {"decoder_input_ids": torch.randint(3, 40, (3, 14))}))
        guided.loss().backward()
    hw.retrofit(model, hw.DistanceAware)
    torch.testing.assert_close(model(**inputs).logits, own, atol=1e-5, rtol=1e-4)
    model(**(inputs | {"decoder_input_ids": torch.randint(3, 40, (3, 14))}))


def test_guiding_twice_is_refused_and_the_first_goes_on() -> None:
    model, inputs = build("bert").train(), batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        with pytest.raises(RuntimeError, match="is guided already"), hw.guiding(model, [hw.guides.First()]):
            pass
        model(**inputs)
        assert guided.loss() > 0


def test_a_copy_of_a_guided_model_is_not_guided() -> None:
    """As people copy a model while it learns, to average weights or to keep the best."""
    model, inputs = build("bert"), batch()
    with hw.guiding(model.train(), [hw.guides.First()]) as guided:
        model(**inputs)
        copied = copy.deepcopy(model)
        copied(**inputs)
        assert guided.loss().requires_grad  # of the model's own pass
        with hw.guiding(copied, [hw.guides.First()]) as other:
            copied(**inputs)
            assert other.loss().requires_grad
            with pytest.raises(RuntimeError, match="no attention was heard"):
                guided.loss()
    torch.testing.assert_close(copied.eval()(**inputs)[0], model.eval()(**inputs)[0])


def test_copies_in_threads_are_refused() -> None:
    parallel = nn.DataParallel(build("bert"))
    with pytest.raises(ValueError, match=r"use DDP \(torchrun\)"), hw.guiding(parallel, [hw.guides.First()]):
        pass


def test_a_model_that_cannot_be_tried_asks_for_an_example() -> None:
    import transformers

    vision: Any = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
        )
    )
    with (
        pytest.raises(ValueError, match="give a batch of its own as example="),
        hw.guiding(vision, [hw.guides.First()]),
    ):
        pass
    example = {"pixel_values": torch.randn(2, 3, 8, 8)}
    with hw.guiding(vision.train(), [hw.guides.MapDiscrimination()], example=example) as guided:
        vision(**example)
        assert guided.loss() > 0


def test_an_example_goes_where_the_model_is() -> None:
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "token_type_ids": None}
    (ids,) = example_inputs(build("bert").to("meta"), batch).values()
    assert ids.device.type == "meta", "a data loader's batch is on the CPU, wherever the model learns"
