"""Schemes and PEFT: training, saving and loading, whichever was added first."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoModelForSequenceClassification

import headwise as hw
from headwise._scheme_loading import SCHEME
from tests.integrations.tiny_models import build_batch, build_model, randomize_schemes, run_model

peft: Any = pytest.importorskip("peft")


def add_lora(model: Any, **options: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], r=2, **options))


def build_scheme_first() -> Any:
    return add_lora(hw.retrofit(build_model("bert")), modules_to_save=[SCHEME, "classifier"])


def build_lora_first() -> Any:
    return hw.retrofit(add_lora(build_model("bert"), modules_to_save=["classifier"]))


BUILDS = {"scheme-first": build_scheme_first, "lora-first": build_lora_first}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_schemes_are_trained_and_saved_with_the_adapter(build: Any, tmp_path: Path) -> None:
    model, inputs = build().train(), build_batch()
    parameters = hw.scheme_parameters(model)
    assert len(parameters) == 6
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(2):  # v has no gradient while w is 0
        optimizer.zero_grad()
        model(**inputs).logits.square().sum().backward()
        optimizer.step()
    assert not any(torch.equal(x, y) for x, y in zip(parameters, before, strict=True))
    randomize_schemes(model)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(hw.retrofit(build_model("bert")), tmp_path)
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))
    torch.testing.assert_close(hw.scheme_parameters(loaded), parameters)


@pytest.mark.parametrize("scheme", [hw.TransformerXL, hw.Disentangled])
def test_adapters_inside_of_a_scheme_are_trained(scheme: type[hw.Scheme]) -> None:
    model = hw.retrofit(build_model("bert"), scheme)
    randomize_schemes(model)
    targets = [name for name, module in model.named_modules() if SCHEME in name and isinstance(module, torch.nn.Linear)]
    model, inputs = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=2)), build_batch()
    before = run_model(model, inputs)
    model(**inputs).logits.square().sum().backward()
    adapters = {name: p for name, p in model.named_parameters() if "lora_B" in name}
    assert adapters
    assert all(p.grad is not None and p.grad.any() for p in adapters.values())
    with torch.no_grad():
        for parameter in adapters.values():
            parameter.normal_()
    assert not torch.allclose(run_model(model, inputs), before)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_an_adapter_with_schemes_is_refused_by_a_model_without(build: Any, tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"call headwise\.retrofit .* before loading the adapter"):
        peft.PeftModel.from_pretrained(build_model("bert"), tmp_path)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_transformers_refuses_an_adapter_with_schemes_for_a_model_without(build: Any, tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    build_model("bert").save_pretrained(base)
    model = build()
    next(iter(model.peft_config.values())).base_model_name_or_path = str(base)
    model.save_pretrained(adapter)
    with pytest.raises(ValueError, match=r"call headwise\.retrofit .* before loading the adapter"):
        build_model("bert").load_adapter(adapter)
    with pytest.raises(ValueError, match=r"call headwise\.retrofit .* before loading the adapter"):
        AutoModelForSequenceClassification.from_pretrained(adapter)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("options", [{"layers": [0]}, {"scheme": hw.T5Bias}], ids=["fewer-layers", "another-scheme"])
def test_an_adapter_is_refused_by_a_model_with_other_schemes(build: Any, options: Any, tmp_path: Path) -> None:
    build().save_pretrained(tmp_path)
    retrofitted: Any = hw.retrofit(build_model("bert"), **options)
    with pytest.raises(ValueError, match=r"call headwise\.retrofit .* before loading the adapter"):
        peft.PeftModel.from_pretrained(copy.deepcopy(retrofitted), tmp_path)
    with pytest.raises(ValueError, match=r"call headwise\.retrofit .* before loading the adapter"):
        retrofitted.load_adapter(tmp_path)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_merged_models_are_saved_and_loaded(build: Any, tmp_path: Path) -> None:
    model, inputs = build(), build_batch()
    randomize_schemes(model)
    expected = run_model(model, inputs)
    merged = model.merge_and_unload()
    torch.testing.assert_close(run_model(merged, inputs), expected)
    merged.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(run_model(loaded, inputs), expected)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_adapters_can_be_disabled(build: Any) -> None:
    """Without the adapter, the scheme is the one from before training, which leaves the outputs unchanged."""
    model, inputs = build(), build_batch()
    expected = run_model(build_model("bert"), inputs)
    randomize_schemes(model)
    assert not torch.allclose(run_model(model, inputs), expected, atol=1e-4)
    with model.disable_adapter():
        torch.testing.assert_close(run_model(model, inputs), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.xfail(
    Version(transformers.__version__) < Version("5.22"),
    reason="load_adapter of transformers 5.17 reports modules_to_save as unexpected and does not load them",
    strict=False,
)
def test_adapters_of_transformers_save_schemes(tmp_path: Path) -> None:
    model, inputs = build_model("bert"), build_batch()
    model.add_adapter(peft.LoraConfig(target_modules=["query"], r=2))
    hw.retrofit(model)
    randomize_schemes(model)
    model.save_pretrained(tmp_path)
    loaded: Any = hw.retrofit(build_model("bert"))
    loaded.load_adapter(tmp_path)
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))


def test_removed_schemes_are_not_saved(tmp_path: Path) -> None:
    model, inputs = build_lora_first(), build_batch()
    hw.remove_scheme(model)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(build_model("bert"), tmp_path)
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_save_adapter_saves_the_trained_schemes(build: Any, tmp_path: Path) -> None:
    model = build()
    randomize_schemes(model)
    hw.save_adapter(model, tmp_path)
    loaded = hw.load_adapter(build_model("bert"), tmp_path)
    torch.testing.assert_close(hw.scheme_parameters(loaded), hw.scheme_parameters(model))
