"""headwise's attention in models of many families: the same outputs, and records that match the model's own weights."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise as hw

pytest.importorskip("accelerate")  # of the extra hf
from headwise.integrations import use_headwise_attention
from headwise.integrations.model_utils import example_inputs, pretrained_modules
from tests.integrations.tiny_models import (
    FAMILIES,
    UNSUPPORTED_FAMILIES,
    KeepRecords,
    build_batch,
    build_model,
    first_output,
    randomize_schemes,
    run_model,
)

hf: Any = transformers


def eager_attentions(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    model.set_attn_implementation("eager")
    return list(model(**inputs, output_attentions=True).attentions)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_received_attention_and_gradients_match_eager_attention(family: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
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


def build_precise_model(family: str) -> tuple[Any, dict[str, Tensor], Any]:
    """Return a model in float64, a batch and tolerances; in float32 if transformers computes its softmax in float32."""
    if family in ("modernbert", "llama", "qwen2"):
        return build_model(family), build_batch(), {"atol": 1e-5, "rtol": 1e-5}
    return build_model(family).double(), build_batch(), {"atol": 1e-10, "rtol": 1e-8}


@pytest.mark.parametrize("family", FAMILIES)
def test_output_attentions_of_a_retrofitted_model(family: str) -> None:
    """With a neutral scheme, the weights are those of the model's own eager attention, and so are those of `eager`."""
    model, inputs, tolerance = build_precise_model(family)
    expected = [x.detach() for x in eager_attentions(model, inputs)]
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    real = inputs["attention_mask"].bool()[:, None, :, None]
    for implementation in ("headwise", "eager"):
        model.set_attn_implementation(implementation)
        attentions = model(**inputs, output_attentions=True).attentions
        assert len(attentions) == len(expected) == 3
        for weights, expected_weights in zip(attentions, expected, strict=True):
            torch.testing.assert_close(weights * real, expected_weights * real, **tolerance)


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "llama", "t5-encoder"])
def test_every_attention_implementation_computes_the_scheme(family: str) -> None:
    model, inputs, tolerance = build_precise_model(family)
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    randomize_schemes(model)
    expected = run_model(model, inputs)
    weights = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("eager")
    torch.testing.assert_close(run_model(model, inputs), expected, **tolerance)
    real = inputs["attention_mask"].bool()[:, None, :, None]
    for x, y in zip(model(**inputs, output_attentions=True).attentions, weights, strict=True):
        torch.testing.assert_close(x * real, y * real, **tolerance)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(run_model(model, inputs), expected, **tolerance)
    with pytest.raises(ValueError, match=r"'sdpa' and output_attentions=True; call .* one of headwise, eager"):
        model(**inputs, output_attentions=True)
    model.config._attn_implementation_internal = "flash_attention_2"  # cannot be set without the package
    with pytest.raises(ValueError, match="cannot be computed with attn_implementation='flash_attention_2'"):
        model(**inputs)


def test_weights_of_a_guided_model_can_be_read() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    expected = eager_attentions(model, inputs)
    real = inputs["attention_mask"].bool()[:, None, :, None]
    with hw.guiding(model, [hw.guides.MapDiscrimination()]) as guided:
        attentions = model(**inputs, output_attentions=True).attentions
        assert guided.loss() > 0
    for weights, expected_weights in zip(attentions, expected, strict=True):
        torch.testing.assert_close(weights * real, expected_weights * real)


@pytest.mark.parametrize("family", ["bert", "modernbert", "retrofitted"])
def test_outputs_and_gradients_of_left_padded_encoders_do_not_change(family: str) -> None:
    """BERT's pooler reads the first token, which is a padding token here."""
    model = build_model("bert" if family == "retrofitted" else family).double()
    if family == "retrofitted":
        hw.retrofit(model, hw.DistanceAware)
        randomize_schemes(model)
    inputs = {name: x.flip(1) for name, x in build_batch().items()}
    parameters = list(model.train().parameters())
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    expected = model(**inputs, output_hidden_states=True)
    gradients = torch.autograd.grad(expected.logits.square().sum(), parameters, **options)
    with hw.guiding(model, [hw.guides.MapDiscrimination(), hw.guides.Next()], check=False) as guided:
        outputs = model(**inputs, output_hidden_states=True)
        assert guided.loss() > 0
    torch.testing.assert_close(outputs.logits, expected.logits, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(outputs.hidden_states, expected.hidden_states, atol=1e-10, rtol=1e-8)
    guided_gradients = torch.autograd.grad(outputs.logits.square().sum(), parameters, **options)
    torch.testing.assert_close(guided_gradients, gradients, atol=1e-9, rtol=1e-7)


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
        pytest.raises(ValueError, match=r"reads pixel_values, .* pass a batch that the model accepts as example="),
        hw.guiding(model, [hw.guides.First()]),
    ):
        pass
    example = {"pixel_values": torch.randn(2, 3, 8, 8)}
    with hw.guiding(model.train(), [hw.guides.MapDiscrimination()], example=example) as guided:
        model(**example)
        assert guided.loss() > 0


@pytest.mark.parametrize("family", ["Bert", "LayoutLM", "Splinter"])
def test_padding_at_the_left_is_computed_in_training(family: str) -> None:
    """LayoutLM has an additive mask, and its layers and those of Splinter do not say whether they are causal."""
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = getattr(hf, f"{family}Config")(**sizes, **dropout, intermediate_size=8)
    model, inputs = getattr(hf, f"{family}Model")(config).train(), build_batch()
    inputs = {name: x.flip(1) for name, x in inputs.items()}
    expected = model(**inputs).last_hidden_state
    with hw.guiding(model, [hw.guides.MapDiscrimination()]):
        torch.testing.assert_close(model(**inputs).last_hidden_state, expected)


def test_models_that_need_inputs_of_the_decoder_need_no_example() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = hf.M2M100Model(hf.M2M100Config(vocab_size=40, d_model=8, **sizes))
    assert len(hw.scheme_parameters(hw.retrofit(model, hw.DistanceAware, part="both"))) == 4


def test_an_example_is_moved_to_the_models_device() -> None:
    example = {"input_ids": torch.tensor([[1, 2, 3]]), "token_type_ids": None}
    (ids,) = example_inputs(build_model("bert").to("meta"), example).values()
    assert ids.device.type == "meta"
