"""Schemes in trained models: as the model was at first, trained by anyone, saved and loaded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import headwise as hw
from headwise.integrations import scheme_modules
from tests.guidance.models import FAMILIES, LAYERS
from tests.guidance.test_attaching import batch, build, first

NEUTRAL: dict[str, type[hw.Scheme]] = {"distance": hw.DistanceAware, "relative": hw.RelativePositions}


def outputs(model: Any, inputs: Any) -> torch.Tensor:
    with torch.no_grad():
        return first(model.eval()(**inputs), inputs["attention_mask"])


@pytest.mark.parametrize("scheme", NEUTRAL)
@pytest.mark.parametrize("name", FAMILIES)
def test_starts_as_the_model_was_and_learns(name: str, scheme: str) -> None:
    model, inputs = build(name), batch()
    before = outputs(model, inputs)
    hw.retrofit(model, NEUTRAL[scheme])
    torch.testing.assert_close(outputs(model, inputs), before, atol=1e-5, rtol=1e-5)
    parameters = hw.scheme_parameters(model)
    assert parameters
    assert {id(p) for p in parameters} <= {id(p) for p in model.parameters()}
    optimizer = torch.optim.Adam(parameters, 0.1)
    for _ in range(2):
        loss = first(model.train()(**inputs), inputs["attention_mask"]).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters[:1])
    assert not torch.allclose(outputs(model, inputs), before, atol=1e-4)


@pytest.mark.parametrize("how", ["whole", "adapter"])
def test_saved_and_loaded(how: str, tmp_path: Path) -> None:
    model, inputs = build("bert"), batch()
    if how == "adapter":
        model.save_pretrained(tmp_path / "model")
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    with torch.no_grad():
        for parameter in hw.scheme_parameters(model):
            parameter.normal_()
    expected = outputs(model, inputs)
    loaded: Any
    if how == "whole":
        model.save_pretrained(tmp_path / "model")
        loaded = hw.from_pretrained(tmp_path / "model", AutoModelForSequenceClassification)
        base: Any = hw.from_pretrained(tmp_path / "model")  # without the head
        torch.testing.assert_close(hw.scheme_parameters(base), hw.scheme_parameters(model))
    else:
        hw.save_adapter(model, tmp_path / "adapter")
        assert sum(file.stat().st_size for file in (tmp_path / "adapter").iterdir()) < 4096
        loaded = hw.load_adapter(
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "model"), tmp_path / "adapter"
        )
    assert len(list(scheme_modules(loaded))) == 2
    torch.testing.assert_close(outputs(loaded, inputs), expected)


@pytest.mark.parametrize("name", ["bert", "mpnet", "deberta"])  # the last two do not know torch's kernels
def test_a_model_without_a_scheme_loads_as_by_its_auto_class(name: str, tmp_path: Path) -> None:
    model, inputs = build(name), batch()
    model.save_pretrained(tmp_path)
    loaded: Any = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    assert type(loaded) is type(model)
    torch.testing.assert_close(outputs(loaded, inputs), outputs(model, inputs))


def test_loading_tells_what_the_auto_class_tells(tmp_path: Path) -> None:
    hw.retrofit(build("bert")).save_pretrained(tmp_path)  # type: ignore[operator]
    model, info = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification, output_loading_info=True)
    assert len(hw.scheme_parameters(model)) == 2 * LAYERS
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


def test_a_model_that_needs_an_example_is_loaded_by_one(tmp_path: Path) -> None:
    import transformers as hf

    sizes: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
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


def test_works_together_with_guides() -> None:
    model, inputs = hw.retrofit(build("bert"), hw.DistanceAware).train(), batch()
    with hw.guiding(model, [hw.guides.MapDiscrimination(), hw.guides.Next(heads=[0])]) as guided:
        (model(**inputs).logits.sum() + guided.loss()).backward()
    assert all(parameter.grad is not None for parameter in hw.scheme_parameters(model))


@pytest.mark.parametrize("scheme", ["DistanceAware", "RelativePositions", "TransformerXL", "Tener"])
def test_positions_reach_across_a_cache(scheme: str) -> None:
    """Generating with a cache gives the tokens that it gives without."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=2,
        intermediate_size=32,
        vocab_size=40,
    )
    model: Any = hf.LlamaForCausalLM(config)
    hw.retrofit(model, scheme)
    with torch.no_grad():  # so that a wrong distance shows
        for parameter in model.parameters():
            parameter.mul_(5.0)
        for parameter in hw.scheme_parameters(model):
            parameter.normal_(0.0, 0.5)
    ids = torch.randint(3, 40, (2, 5))
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": real}
    without = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, use_cache=True, **options), without)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **options), without)


def test_taken_out_again() -> None:
    model, inputs = build("bert"), batch()
    before = outputs(model, inputs)
    hw.retrofit(model, hw.DistanceAware, w_init=1.0)
    assert not torch.allclose(outputs(model, inputs), before, atol=1e-4)
    hw.remove_scheme(model)
    torch.testing.assert_close(outputs(model, inputs), before)


def test_mistakes_are_named(tmp_path: Path) -> None:
    model = build("bert")
    with pytest.raises(ValueError, match="scheme must be one of DistanceAware"):
        hw.retrofit(model, "Distance")
    with pytest.raises(ValueError, match="the class or its name"):
        hw.retrofit(model, hw.DistanceAware(2))  # type: ignore[arg-type]
    layers: Any
    for layers in ([7], [], ["0"]):
        with pytest.raises(ValueError, match=f"but the model has {LAYERS} attention layers"):
            hw.retrofit(model, layers=layers)
    with pytest.raises(ValueError, match="has no scheme"):
        hw.save_adapter(model, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no headwise\.json"):
        hw.load_adapter(model, tmp_path)
    hw.retrofit(model)
    with pytest.raises(ValueError, match="has a scheme already"):
        hw.retrofit(model)
    with pytest.raises(TypeError, match="expected a Hugging Face PreTrainedModel"):
        hw.retrofit(torch.nn.Linear(2, 2))


def test_a_scheme_that_a_model_was_built_with_is_no_guest() -> None:
    """Else its parameters, which a model from scratch learns like all others, would get a hundredfold learning rate."""
    from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification

    sizes: Any = {"vocab_size": 20, "word_dim": 8, "heads": 2, "head_dim": 4, "num_labels": 2}
    for scheme in ("distance-aware", "rpr", "transformer-xl"):
        model = HeadwiseForSequenceClassification(HeadwiseConfig(scheme=scheme, **sizes))
        assert hw.scheme_parameters(model) == []
        with pytest.raises(hw.NotThroughTheInterface):
            hw.retrofit(model, hw.DistanceAware, example={"input_ids": torch.tensor([[1, 2, 3]])})
