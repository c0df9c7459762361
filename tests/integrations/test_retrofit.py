"""`retrofit`: position schemes in pretrained models, trained, saved and loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

import headwise as hw
from headwise.integrations import scheme_modules
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification
from tests.integrations.tiny_models import FAMILIES, LAYERS, build_batch, build_model, first_output

hf: Any = transformers

NEUTRAL_SCHEMES: dict[str, type[hw.Scheme]] = {"distance": hw.DistanceAware, "relative": hw.RelativePositions}


def run_model(model: Any, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return first_output(model.eval()(**inputs), inputs["attention_mask"])


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


def randomize_schemes(model: Any) -> None:
    with torch.no_grad():
        for parameter in hw.scheme_parameters(model):
            parameter.normal_()


def test_save_pretrained_and_from_pretrained(tmp_path: Path) -> None:
    model, inputs = build_model("bert"), build_batch()
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    randomize_schemes(model)
    model.save_pretrained(tmp_path)
    loaded = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert len(list(scheme_modules(loaded))) == 2
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))
    base = hw.from_pretrained(tmp_path)  # the model without its head
    torch.testing.assert_close(hw.scheme_parameters(base), hw.scheme_parameters(model))


def test_save_adapter_and_load_adapter(tmp_path: Path) -> None:
    model, inputs = build_model("bert"), build_batch()
    model.save_pretrained(tmp_path / "model")
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    randomize_schemes(model)
    hw.save_adapter(model, tmp_path / "adapter")
    assert sum(file.stat().st_size for file in (tmp_path / "adapter").iterdir()) < 4096
    pretrained = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    loaded = hw.load_adapter(pretrained, tmp_path / "adapter")
    assert len(list(scheme_modules(loaded))) == 2
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta"])  # the last two do not support SDPA
def test_from_pretrained_loads_models_without_a_scheme(family: str, tmp_path: Path) -> None:
    model, inputs = build_model(family), build_batch()
    model.save_pretrained(tmp_path)
    loaded = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert type(loaded) is type(model)
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))


def test_from_pretrained_returns_the_loading_report(tmp_path: Path) -> None:
    hw.retrofit(build_model("bert")).save_pretrained(tmp_path)  # type: ignore[operator]
    model, report = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification, output_loading_info=True)
    assert len(hw.scheme_parameters(model)) == 2 * LAYERS
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_a_model_that_needs_an_example_is_loaded_with_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = hf.ViTConfig(image_size=8, patch_size=4, **sizes)
    example = {"pixel_values": torch.randn(2, 3, 8, 8)}
    model: Any = hw.retrofit(hf.ViTModel(config), hw.DistanceAware, example=example)
    model.save_pretrained(tmp_path)
    hw.save_adapter(model, tmp_path / "adapter")
    for loaded in (
        hw.from_pretrained(tmp_path, example=example),
        hw.load_adapter(hf.ViTModel(config), tmp_path / "adapter", example=example),
    ):
        assert len(hw.scheme_parameters(loaded)) == 2


def test_guides_and_schemes_together() -> None:
    model, inputs = hw.retrofit(build_model("bert"), hw.DistanceAware).train(), build_batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination(), hw.guides.Next(heads=[0])]) as guided:
        (model(**inputs).logits.sum() + guided.loss()).backward()
    assert all(parameter.grad is not None for parameter in hw.scheme_parameters(model))


@pytest.mark.parametrize("scheme", ["DistanceAware", "RelativePositions", "TransformerXL", "Tener"])
def test_generation_gives_the_same_tokens_with_and_without_a_cache(scheme: str) -> None:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=2,
        intermediate_size=32,
        vocab_size=40,
    )
    model = hf.LlamaForCausalLM(config)
    hw.retrofit(model, scheme)
    with torch.no_grad():  # large parameters, so that a wrong position changes the tokens
        for parameter in model.parameters():
            parameter.mul_(5.0)
        for parameter in hw.scheme_parameters(model):
            parameter.normal_(0.0, 0.5)
    ids = torch.randint(3, 40, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, use_cache=True, **options), expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **options), expected)


def test_remove_scheme_restores_the_outputs() -> None:
    model, inputs = build_model("bert"), build_batch()
    before = run_model(model, inputs)
    hw.retrofit(model, hw.DistanceAware, w_init=1.0)
    assert not torch.allclose(run_model(model, inputs), before, atol=1e-4)
    hw.remove_scheme(model)
    torch.testing.assert_close(run_model(model, inputs), before)


def test_errors_name_the_argument(tmp_path: Path) -> None:
    model = build_model("bert")
    with pytest.raises(ValueError, match=r"scheme must be one of Plain, .*DistanceAware"):
        hw.retrofit(model, "Distance")
    with pytest.raises(ValueError, match="as a class or by name"):
        hw.retrofit(model, hw.DistanceAware(2))  # type: ignore[arg-type]
    layers: Any
    for layers in ([7], [], ["0"]):
        with pytest.raises(ValueError, match=f"but the model has {LAYERS} attention layers"):
            hw.retrofit(model, layers=layers)
    with pytest.raises(ValueError, match="has no scheme"):
        hw.save_adapter(model, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"contains no headwise\.json"):
        hw.load_adapter(model, tmp_path)
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
