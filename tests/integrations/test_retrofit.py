"""`retrofit`: position schemes in pretrained models."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headwise as hw
from headwise._scheme_loading import SCHEME
from headwise.integrations.model_utils import UnsupportedAttentionError, attn_implementations, pretrained_modules
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification
from tests.integrations.tiny_models import (
    FAMILIES,
    LAYERS,
    KeepRecords,
    build_batch,
    build_model,
    first_output,
    randomize_schemes,
    run_model,
)

hf: Any = transformers

NEUTRAL_SCHEMES: dict[str, type[hw.Scheme]] = {
    "distance": hw.DistanceAware,
    "relative": hw.RelativePositions,
    "t5-bias": hw.T5Bias,
    "disentangled": hw.Disentangled,
}


@pytest.mark.short_form("values")
@pytest.mark.parametrize("scheme", NEUTRAL_SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_unchanged_until_training(family: str, scheme: str) -> None:
    model, inputs = build_model(family), build_batch()
    before = run_model(model, inputs)
    hw.retrofit(model, NEUTRAL_SCHEMES[scheme])
    torch.testing.assert_close(run_model(model, inputs), before, atol=1e-5, rtol=1e-5)
    parameters = hw.scheme_parameters(model)
    assert parameters
    assert {id(p) for p in parameters} <= {id(p) for p in model.parameters()}
    optimizer = torch.optim.Adam(parameters, 0.1)
    for _ in range(2):
        loss = first_output(model.train()(**inputs), inputs["attention_mask"]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters[:1])
    assert not torch.allclose(run_model(model, inputs), before, atol=1e-4)


def test_guides_and_schemes_together() -> None:
    model, inputs = hw.retrofit(build_model("bert"), hw.DistanceAware).train(), build_batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination(), hw.guides.Next(heads=[0])]) as guided:
        (model(**inputs).logits.sum() + guided.loss()).backward()
    assert all(parameter.grad is not None for parameter in hw.scheme_parameters(model))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_remove_scheme_restores_outputs_implementation_and_configuration(implementation: str) -> None:
    model, inputs = build_model("bert"), build_batch()
    model.set_attn_implementation(implementation)
    before, config, modules = run_model(model, inputs), model.config.to_dict(), list(model.modules())
    hw.retrofit(model, hw.DistanceAware, w_init=1.0)
    assert not torch.allclose(run_model(model, inputs), before, atol=1e-4)
    hw.remove_scheme(model)
    assert torch.equal(run_model(model, inputs), before)
    assert {module.config._attn_implementation for module in pretrained_modules(model)} == {implementation}
    assert model.config.to_dict() == config
    assert list(model.modules()) == modules
    assert all(module.config is model.config for module in modules if hasattr(module, "config"))


def test_layers_whose_configuration_is_not_that_of_their_encoder(tmp_path: Path) -> None:
    """An EncoderDecoderModel gives its parts new configurations. Their layers keep the old ones."""
    sizes: Any = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = hf.BertConfig(**sizes, num_attention_heads=2)
    decoder_config = hf.BertConfig(**sizes, num_attention_heads=2, is_decoder=True, add_cross_attention=True)
    model: Any = hf.EncoderDecoderModel(encoder=hf.BertModel(config), decoder=hf.BertLMHeadModel(decoder_config)).eval()
    assert model.encoder.encoder.config is not model.encoder.config
    batch = build_batch()
    inputs = batch | {"decoder_input_ids": batch["input_ids"][:, :5]}
    before, implementations = model(**inputs).logits, attn_implementations(model)
    with hw.guiding(model.train(), [hw.guides.MapDiscrimination()], example=inputs) as guided:
        model(**inputs)
        assert guided.loss() > 0
    model.eval()
    hw.retrofit(model, part="both", example=inputs)
    assert len(hw.scheme_parameters(model)) == 8
    torch.testing.assert_close(model(**inputs).logits, before)
    randomize_schemes(model)
    outputs = model(**inputs, output_attentions=True)
    assert len(outputs.encoder_attentions) == len(outputs.decoder_attentions) == 2
    model.save_pretrained(tmp_path)
    loaded: Any = hf.EncoderDecoderModel.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded.eval()(**inputs).logits, outputs.logits)
    hw.remove_scheme(model)
    torch.testing.assert_close(model(**inputs).logits, before)
    assert attn_implementations(model) == implementations


def test_a_model_that_cannot_be_retrofitted_is_left_unchanged() -> None:
    model, inputs = build_model("bert"), build_batch()
    model.set_attn_implementation("eager")
    before, config = run_model(model, inputs), model.config.to_dict()
    with pytest.raises(TypeError, match="banana"):
        hw.retrofit(model, hw.DistanceAware, banana=1)
    with pytest.raises(ValueError, match="adjust must be one of"):
        hw.retrofit(model, hw.DistanceAware, adjust="never")
    assert model.config._attn_implementation == "eager"
    assert model.config.to_dict() == config
    assert torch.equal(run_model(model, inputs), before)


@pytest.mark.parametrize("apply", [hw.retrofit, lambda model: hw.guiding(model, [KeepRecords()]).__enter__()])
def test_a_model_that_fails_with_our_attention_is_not_said_to_reject_the_example(apply: Any) -> None:
    """LED checks the shape of its masks before it computes attention by itself."""
    sizes = {f"{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    config = hf.LEDConfig(vocab_size=40, d_model=8, attention_window=4, **sizes)
    model = hf.LEDForConditionalGeneration(config)
    with pytest.raises(UnsupportedAttentionError, match="does not go through transformers' AttentionInterface"):
        apply(model)
    with pytest.raises(ValueError, match="failed on the example"):
        hw.retrofit(model, example={"input_ids": torch.tensor([[99]])})
    model = build_model("bert")

    def fail(layer: Any, _: Any) -> None:
        if layer.config._attn_implementation == "headwise":
            raise RuntimeError("no such attention")

    model.bert.encoder.layer[0].attention.self.register_forward_pre_hook(fail)
    with pytest.raises(
        UnsupportedAttentionError, match=r"own attention, but fails with headwise's \(no such attention"
    ):
        apply(model)


def test_windowed_attention_is_not_blamed_on_the_example() -> None:
    model = hf.LongformerModel(
        hf.LongformerConfig(
            vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, attention_window=4
        )
    )
    guided = hw.guiding(model, [KeepRecords()], output_attentions=True)
    with pytest.raises(UnsupportedAttentionError, match=r"^LongformerModel returns .* not of all pairs of tokens"):
        guided.__enter__()


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_classifiers_that_read_the_end_of_a_text_need_no_example(name: str) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    if name == "T5":
        sizes = {"d_kv": 4, "num_heads": 2, "num_layers": 1}
    config = getattr(hf, f"{name}Config")(vocab_size=40, d_model=8, **sizes)
    model = getattr(hf, f"{name}ForSequenceClassification")(config)
    with hw.guiding(model, [KeepRecords()]):
        pass
    hw.retrofit(model, hw.RelativePositions)


@pytest.mark.parametrize("layers", [1, np.int32(1), [1, -2], (1,), range(1, 2), np.array([1]), torch.tensor([1])])
def test_layers_may_be_any_integers(layers: Any) -> None:
    model = build_model("bert")
    hw.retrofit(model, layers=layers)
    assert [SCHEME in layer.attention.self._modules for layer in model.bert.encoder.layer] == [False, True, False]


def test_errors_name_the_argument() -> None:
    model = build_model("bert")
    with pytest.raises(ValueError, match=r"scheme must be a Scheme class or one of Plain, .*DistanceAware"):
        hw.retrofit(model, "Distance")
    for scheme in (hw.DistanceAware(2), torch.nn.Linear, None):
        with pytest.raises(TypeError, match=r"scheme must be a class such as headwise\.DistanceAware"):
            hw.retrofit(model, scheme)  # type: ignore[arg-type]
    layers: Any
    for layers in ([7], [-4]):
        with pytest.raises(ValueError, match=f"but the model has {LAYERS} attention layers"):
            hw.retrofit(model, layers=layers)
    for layers in (["0"], "0", [0.0], True):
        with pytest.raises(TypeError, match="layers must be an integer, several integers or None for all"):
            hw.retrofit(model, layers=layers)
    with pytest.raises(ValueError, match="layers must be at least one integer"):
        hw.retrofit(model, layers=[])
    with pytest.raises(ValueError, match="part is for encoder-decoder models"):
        hw.retrofit(model, part="decoder")
    with pytest.raises(TypeError, match=r"w_init must be a number, .* saved in config\.json"):
        hw.retrofit(model, w_init=torch.zeros(2))
    with pytest.raises(TypeError, match="heads is that of the model and cannot be an option"):
        hw.retrofit(model, heads=2)
    with pytest.raises(ValueError, match="pretrained models have positions already"):
        hw.retrofit(model, "Rotary")
    hw.retrofit(model)
    with pytest.raises(ValueError, match="already has a scheme"):
        hw.retrofit(model)
    with pytest.raises(TypeError, match="expected a Hugging Face PreTrainedModel"):
        hw.retrofit(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("scheme", ["distance-aware", "rpr", "transformer-xl"])
def test_schemes_of_our_own_models_do_not_count_as_added(scheme: Any) -> None:
    """GuidedTrainer would train their parameters with 100 times the learning rate otherwise."""
    sizes: Any = {"vocab_size": 20, "word_dim": 8, "heads": 2, "head_dim": 4, "num_labels": 2}
    model = HeadwiseForSequenceClassification(HeadwiseConfig(scheme=scheme, **sizes))
    assert hw.scheme_parameters(model) == []
    with pytest.raises(hw.UnsupportedAttentionError):
        hw.retrofit(model, hw.DistanceAware, example={"input_ids": torch.tensor([[1, 2, 3]])})


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_autocast_casts_tensors_before_attention(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary models have q and k in float32. Cached calls of kernels take tensors of one dtype."""
    model = hw.retrofit(build_model(family), hw.DistanceAware)
    module = sys.modules["headwise.integrations.hf_attention"]
    dtypes: set[torch.dtype] = set()
    attend = module.attend

    def record(*tensors: Any, **options: Any) -> Any:
        dtypes.update(x.dtype for x in tensors)
        return attend(*tensors, **options)

    monkeypatch.setattr(module, "attend", record)
    with torch.autocast("cpu", torch.bfloat16):
        run_model(model, build_batch())
    assert dtypes == {torch.bfloat16}
