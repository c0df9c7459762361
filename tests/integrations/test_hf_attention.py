"""headwise's attention in models of many families: the same outputs, and records that match the model's own weights."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from headwise.integrations import deferred, use_headwise_attention
from headwise.integrations.model_utils import example_inputs, pretrained_modules
from tests.integrations.tiny_models import (
    FAMILIES,
    UNSUPPORTED_FAMILIES,
    KeepRecords,
    build_batch,
    build_model,
    first_output,
)

hf: Any = transformers


def eager_attentions(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    model.set_attn_implementation("eager")
    return list(model(**inputs, output_attentions=True).attentions)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_deferred", [False, True], ids=["direct", "deferred"])
def test_outputs_received_attention_and_gradients_match_eager_attention(
    family: str, is_deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred, "is_short", lambda q: is_deferred)  # on a CPU too, in Triton's interpreter
    device = "cuda" if is_deferred and torch.cuda.is_available() else "cpu"
    model, inputs = build_model(family).train().to(device), {name: x.to(device) for name, x in build_batch().items()}
    model.set_attn_implementation("sdpa")
    expected_output = first_output(model(**inputs), inputs["attention_mask"])
    keeper = KeepRecords()
    guides = [hw.guides.MapDiscrimination(1.0), hw.guides.PatternDecorrelation(0.5), keeper]
    with hw.guiding(model, guides) as guided:
        output = first_output(model(**inputs), inputs["attention_mask"])
        loss = guided.loss()
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(output, expected_output, atol=1e-4, rtol=1e-4)

    real = inputs["attention_mask"].bool()
    rows = []
    for layer, weights in zip(keeper.records, eager_attentions(model, inputs), strict=True):
        received = (weights * real[:, None, :, None]).sum(dim=2)
        torch.testing.assert_close(layer.received, received, atol=1e-4, rtol=1e-3)
        assert torch.equal(layer.real, real)
        rows.append(received * real[:, None])
    m = torch.nn.functional.normalize(torch.cat(rows, dim=1), dim=-1)
    similarity = m @ m.mT
    mdg = (similarity.logsumexp(-1) - similarity.diagonal(dim1=1, dim2=2)).mean()
    correlation = m.mT @ m - torch.diag_embed(real.float())
    pdg = (correlation.square().sum(dim=(1, 2)) / m.shape[1] ** 2).mean()
    expected_loss = mdg + 0.5 * pdg
    torch.testing.assert_close(loss, expected_loss, atol=1e-4, rtol=1e-4)
    expected = torch.autograd.grad(expected_loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    assert largest > 0
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=2e-4 * largest, rtol=1e-3)


@pytest.mark.parametrize("family", UNSUPPORTED_FAMILIES)
def test_models_without_the_attention_interface_are_refused(family: str) -> None:
    model = build_model(family)
    error = pytest.raises(hw.UnsupportedAttentionError, match="does not go through")
    with error, hw.guiding(model, [hw.guides.First()]):
        pass
    with pytest.raises(hw.UnsupportedAttentionError):
        hw.retrofit(model)


@pytest.mark.parametrize(("option", "feature"), [("softcap", "soft-capped scores"), ("s_aux", "attention sinks")])
def test_unsupported_options_are_named(option: str, feature: str) -> None:
    layer = nn.Module()
    layer.add_module("headwise_scheme", hw.Plain())
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=rf"Module uses {feature} \({option}\)"):
        hf.AttentionInterface()["headwise"](layer, q, q, q, None, **{option: 1.0})


def test_positional_arguments_and_additive_masks() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    mask = inputs["attention_mask"]
    additive = torch.zeros(3, 1, 9, 9).masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)
    losses, keeper = [], KeepRecords()
    with hw.guiding(model, [hw.guides.PatternDecorrelation(), hw.guides.Delimiter(tokens=[5]), keeper]) as guided:
        for attention_mask in (mask, additive):
            model(inputs["input_ids"], attention_mask)
            losses.append(guided.loss())
            assert torch.equal(keeper.records[0].real, mask.bool())
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_only_the_encoder_of_an_encoder_decoder_model_is_changed(family: str) -> None:
    torch.manual_seed(0)
    if family == "bart":
        sizes = {f"{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "attention_heads")}
        widths = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0}
        model = hf.BartForConditionalGeneration(hf.BartConfig(d_model=16, vocab_size=40, **sizes, **widths))
    else:
        config = hf.T5Config(d_model=16, d_kv=8, num_heads=2, num_layers=2, d_ff=16, vocab_size=40, dropout_rate=0.0)
        model = hf.T5ForConditionalGeneration(config)
    inputs = build_batch() | {"decoder_input_ids": torch.randint(3, 40, (3, 9))}
    longer = inputs | {"decoder_input_ids": torch.randint(3, 40, (3, 14))}
    expected = model.train()(**inputs).logits
    keeper = KeepRecords()
    with hw.guiding(model, [hw.guides.MapDiscrimination(), keeper]) as guided:
        torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-4)
        guided.loss()
        assert len(keeper.records) == 2
        model(**longer)
        guided.loss().backward()
    hw.retrofit(model, hw.DistanceAware)
    torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-4)
    model(**longer)


def test_the_implementation_is_restored_after_an_exception() -> None:
    model = build_model("bert")
    model.set_attn_implementation("eager")
    with pytest.raises(KeyError, match="headwise"), use_headwise_attention(model):
        raise KeyError({module.config._attn_implementation for module in pretrained_modules(model)})
    assert {module.config._attn_implementation for module in pretrained_modules(model)} == {"eager"}


def test_a_model_that_fails_on_dummy_inputs_needs_an_example() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = hf.ViTModel(hf.ViTConfig(image_size=8, patch_size=4, **sizes))
    with (
        pytest.raises(ValueError, match="pass a batch that the model accepts as example="),
        hw.guiding(model, [hw.guides.First()]),
    ):
        pass
    example = {"pixel_values": torch.randn(2, 3, 8, 8)}
    with hw.guiding(model.train(), [hw.guides.MapDiscrimination()], example=example) as guided:
        model(**example)
        assert guided.loss() > 0


def test_an_example_is_moved_to_the_models_device() -> None:
    example = {"input_ids": torch.tensor([[1, 2, 3]]), "token_type_ids": None}
    (ids,) = example_inputs(build_model("bert").to("meta"), example).values()
    assert ids.device.type == "meta"
