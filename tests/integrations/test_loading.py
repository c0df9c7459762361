"""Retrofitted models, saved and loaded in all the usual ways."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

import headwise as hw
from headwise.integrations import scheme_modules
from tests.fresh_python import run_fresh_python
from tests.integrations.tiny_models import (
    FAMILIES,
    LAYERS,
    build_batch,
    build_model,
    randomize_schemes,
    run_model,
)

hf: Any = transformers


def save_retrofitted(family: str, directory: Path, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Save a retrofitted model, and return it with a batch. Its logits differ from those without the schemes."""
    model, inputs = build_model(family), build_batch()
    before = run_model(model, inputs)
    hw.retrofit(model, hw.DistanceAware, layers=[0, -1])
    randomize_schemes(model)
    assert not torch.allclose(run_model(model, inputs), before, atol=1e-4)
    model.save_pretrained(directory, **options)
    return model, inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_classes_load_the_schemes(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = save_retrofitted(family, tmp_path)
    expected = run_model(model, inputs)
    auto_class: Any = type(model) if family == "t5-encoder" else AutoModelForSequenceClassification
    loaded, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is type(model)
    assert torch.equal(run_model(loaded, inputs), expected)
    assert not any(report.values())
    assert "UNEXPECTED" not in "".join(capsys.readouterr())
    base = (
        AutoModel.from_pretrained(tmp_path) if family != "t5-encoder" else hf.T5EncoderModel.from_pretrained(tmp_path)
    )
    torch.testing.assert_close(hw.scheme_parameters(base), hw.scheme_parameters(model))


@pytest.mark.parametrize("scheme", [hw.Alibi, hw.T5Bias, hw.Disentangled])
def test_loaded_models_have_the_same_scheme(scheme: type[hw.Scheme], tmp_path: Path) -> None:
    model: Any = hw.retrofit(build_model("bert"), scheme)
    inputs = build_batch()
    randomize_schemes(model)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.headwise["scheme"] == scheme.__name__
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))


LOAD_OPTIONS: dict[str, dict[str, Any]] = {
    "sdpa": {"attn_implementation": "sdpa"},
    "eager": {"attn_implementation": "eager"},
    "device-map": {"device_map": "cpu"},
    "device-map-auto": {"device_map": "auto"},
    "float64": {"dtype": torch.float64},
    "torch-dtype": {"torch_dtype": torch.float32},
}


@pytest.mark.parametrize("options", LOAD_OPTIONS.values(), ids=LOAD_OPTIONS)
def test_options_of_from_pretrained(options: dict[str, Any], tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, **options)
    torch.testing.assert_close(run_model(loaded, inputs).float(), run_model(model, inputs), atol=1e-6, rtol=1e-5)


def test_half_precision_keeps_the_schemes_in_float32(tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path)
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    assert [parameter.dtype for parameter in hw.scheme_parameters(loaded)] == [torch.float32] * 4
    torch.testing.assert_close(hw.scheme_parameters(loaded), hw.scheme_parameters(model))
    torch.testing.assert_close(run_model(loaded, inputs).float(), run_model(model, inputs), atol=0.05, rtol=0.05)


def test_sharded_weights(tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    for load in (AutoModelForSequenceClassification.from_pretrained, load_with_headwise):
        assert torch.equal(run_model(load(tmp_path), inputs), run_model(model, inputs))


def load_with_headwise(path: Path) -> Any:
    return hw.from_pretrained(path, AutoModelForSequenceClassification)


def test_saving_and_loading_again(tmp_path: Path) -> None:
    """A loaded model is still refused without headwise after it is saved again."""
    model, inputs = save_retrofitted("bert", tmp_path / "first")
    load_with_headwise(tmp_path / "first").save_pretrained(tmp_path / "second")
    assert torch.equal(run_model(load_with_headwise(tmp_path / "second"), inputs), run_model(model, inputs))
    configs = [(tmp_path / name / "config.json").read_text() for name in ("first", "second")]
    assert configs[0] == configs[1]


def test_copies_and_pickles_keep_the_schemes(tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path)
    expected = run_model(model, inputs)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(run_model(other, inputs), expected)
        other.set_attn_implementation("eager")
        torch.testing.assert_close(run_model(other, inputs), expected)
        hw.remove_scheme(other)
        assert not torch.allclose(run_model(other, inputs), expected, atol=1e-4)
    assert torch.equal(run_model(model, inputs), expected)


def test_models_built_from_a_configuration_have_schemes(tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path)
    built: Any = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(tmp_path))
    assert len(list(scheme_modules(built))) == 2
    built.load_state_dict(model.state_dict())
    assert torch.equal(run_model(built, inputs), run_model(model, inputs))


def save_tokenizer(directory: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"]
    vocab = {word: i for i, word in enumerate(words)}
    hf.BertTokenizer(vocab=vocab).save_pretrained(directory)


def test_pipelines_load_the_schemes(tmp_path: Path) -> None:
    model, _ = save_retrofitted("bert", tmp_path)
    save_tokenizer(tmp_path)
    classifier: Any = pipeline("text-classification", str(tmp_path), device="cpu", top_k=None)
    inputs = classifier.tokenizer("a good film", return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**inputs).logits.softmax(dim=-1)[0]
    scores = {result["label"]: result["score"] for result in classifier(["a good film"])[0]}
    torch.testing.assert_close(torch.tensor([scores[f"LABEL_{i}"] for i in range(3)]), expected)


def test_checkpoints_of_the_trainer(tmp_path: Path) -> None:
    inputs = build_batch()
    texts = [{name: x[i] for name, x in inputs.items()} | {"labels": i} for i in range(3)]
    options: dict[str, Any] = {"max_steps": 2, "save_steps": 1, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    model: Any = hw.retrofit(build_model("bert"), hw.DistanceAware, w_init=1.0)
    Trainer(model=model, args=TrainingArguments(str(tmp_path), **options), train_dataset=texts).train()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))
    resumed: Any = hw.retrofit(build_model("bert"), hw.DistanceAware, w_init=1.0)
    trainer = Trainer(model=resumed, args=TrainingArguments(str(tmp_path), **options), train_dataset=texts)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    torch.testing.assert_close(run_model(resumed, inputs), run_model(model, inputs))


#: Ways to load a model with plain transformers.
LOADS = {
    "part": "transformers.EncoderDecoderModel.from_pretrained(path + '/parts')",
    "auto": "transformers.AutoModelForSequenceClassification.from_pretrained(path)",
    "base": "transformers.AutoModel.from_pretrained(path)",
    "class": "transformers.BertForSequenceClassification.from_pretrained(path)",
    "sdpa": "transformers.AutoModel.from_pretrained(path, attn_implementation='sdpa')",
    "eager": "transformers.AutoModel.from_pretrained(path, attn_implementation='eager')",
    "pipeline": "transformers.pipeline('text-classification', path)",
    "window": "transformers.AutoModelForSequenceClassification.from_pretrained(path + '/window')",
}


def build_model_with_retrofitted_encoder() -> Any:
    """Build an encoder-decoder model of two models with their own configurations."""
    configs = (build_model("bert").config, build_model("bert").config)
    model = hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(*configs))
    hw.retrofit(model.encoder, hw.DistanceAware)
    randomize_schemes(model)
    return model


def test_a_model_with_a_retrofitted_part(tmp_path: Path) -> None:
    model: Any = build_model_with_retrofitted_encoder()
    inputs = build_batch() | {"decoder_input_ids": torch.randint(3, 40, (3, 9))}
    model.save_pretrained(tmp_path)
    loaded: Any = hf.EncoderDecoderModel.from_pretrained(tmp_path)
    assert len(hw.scheme_parameters(loaded)) == 2 * LAYERS
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))
    hw.remove_scheme(loaded.encoder)
    loaded.save_pretrained(tmp_path)
    assert "headwise" not in (tmp_path / "config.json").read_text()


def test_transformers_refuses_the_model_without_headwise(tmp_path: Path) -> None:
    """It loads the model once headwise is imported."""
    model, inputs = save_retrofitted("bert", tmp_path)
    torch.save({"inputs": inputs, "logits": run_model(model, inputs)}, tmp_path / "expected.pt")
    save_tokenizer(tmp_path)
    windowed: Any = hw.set_window(build_model("bert"), 4)
    windowed.save_pretrained(tmp_path / "window")
    build_model_with_retrofitted_encoder().save_pretrained(tmp_path / "parts")
    program = f"""
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
sys.modules["headwise"] = None  # as if it were not installed
import transformers
path = {str(tmp_path)!r}
for name, load in {LOADS!r}.items():
    try:
        eval(load)
    except Exception as error:
        print(name, "|", repr(error))
del sys.modules["headwise"]
import headwise, torch
expected = torch.load({str(tmp_path / "expected.pt")!r})
model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
torch.testing.assert_close(model(**expected["inputs"]).logits, expected["logits"])  # number of threads can differ
"""
    lines = [line.partition(" | ") for line in run_fresh_python(program).splitlines()]
    errors = {name: error for name, _, error in lines if name in LOADS}
    assert errors.keys() == LOADS.keys()
    assert 'attn_implementation="headwise"' in errors.pop("window")
    for error in errors.values():
        assert "install headwise, and import it before loading the model" in error


@pytest.mark.long  # the test above imports headwise after transformers in the short form
def test_headwise_may_be_imported_before_and_after_transformers(tmp_path: Path) -> None:
    model, inputs = save_retrofitted("bert", tmp_path)
    torch.save({"inputs": inputs, "logits": run_model(model, inputs)}, tmp_path / "expected.pt")
    for imports in ("import transformers.modeling_utils, headwise", "import headwise, transformers"):
        program = f"""
{imports}
import torch
expected = torch.load({str(tmp_path / "expected.pt")!r})
model = transformers.AutoModelForSequenceClassification.from_pretrained({str(tmp_path)!r})
torch.testing.assert_close(model(**expected["inputs"]).logits, expected["logits"])  # number of threads can differ
"""
        run_fresh_python(program)


@pytest.mark.parametrize("scheme", [hw.DistanceAware, hw.RelativePositions, hw.TransformerXL, hw.Disentangled])
def test_offloaded_schemes(scheme: type[hw.Scheme], tmp_path: Path) -> None:
    """accelerate loads the weights of a module before its `forward`, and removes them after it."""
    pytest.importorskip("accelerate")
    model, inputs = build_model("bert"), build_batch()
    hw.retrofit(model, scheme)
    randomize_schemes(model)
    expected = run_model(model, inputs)
    model.save_pretrained(tmp_path)
    devices = {"bert.embeddings": "cpu", "bert.encoder": "disk", "bert.pooler": "cpu", "classifier": "cpu"}
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, device_map=devices, offload_folder=str(tmp_path / "offloaded")
    )
    assert all(parameter.is_meta for parameter in hw.scheme_parameters(loaded))
    torch.testing.assert_close(run_model(loaded, inputs), expected)


def test_offloaded_models_can_be_retrofitted() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    model, inputs = build_model("bert"), build_batch()
    expected = run_model(model, inputs)
    accelerate.cpu_offload(model, execution_device="cpu")
    hw.retrofit(model)
    torch.testing.assert_close(run_model(model, inputs), expected)
    randomize_schemes(model)
    assert not torch.allclose(run_model(model, inputs), expected, atol=1e-4)


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
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))
    base = hw.load_adapter(build_model("bert").bert, tmp_path / "adapter")  # the model without its head
    torch.testing.assert_close(hw.scheme_parameters(base), hw.scheme_parameters(model))
    with pytest.raises(ValueError, match="already has a scheme"):
        hw.load_adapter(loaded, tmp_path / "adapter")


def test_errors_of_adapters_name_the_cause(tmp_path: Path) -> None:
    model = build_model("bert")
    with pytest.raises(ValueError, match="has no scheme"):
        hw.save_adapter(model, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"contains no headwise\.json"):
        hw.load_adapter(model, tmp_path)
    hw.save_adapter(hw.retrofit(build_model("distilbert")), tmp_path)
    with pytest.raises(
        ValueError, match=r"BertForSequenceClassification has no layer .*: the scheme is for another model"
    ):
        hw.load_adapter(model, tmp_path)


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta"])  # the last two do not support SDPA
def test_from_pretrained_loads_models_without_a_scheme(family: str, tmp_path: Path) -> None:
    model, inputs = build_model(family), build_batch()
    model.save_pretrained(tmp_path)
    loaded = load_with_headwise(tmp_path)
    assert type(loaded) is type(model)
    torch.testing.assert_close(run_model(loaded, inputs), run_model(model, inputs))


def test_from_pretrained_returns_the_loading_report(tmp_path: Path) -> None:
    hw.retrofit(build_model("bert")).save_pretrained(tmp_path)  # type: ignore[operator]
    model, report = hw.from_pretrained(tmp_path, AutoModelForSequenceClassification, output_loading_info=True)
    assert len(hw.scheme_parameters(model)) == 2 * LAYERS
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_a_model_that_is_retrofitted_with_an_example_is_loaded_without_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = hf.ViTConfig(image_size=8, patch_size=4, **sizes)
    example = {"pixel_values": torch.randn(2, 3, 8, 8)}
    model: Any = hw.retrofit(hf.ViTModel(copy.deepcopy(config)), hw.DistanceAware, example=example)
    model.save_pretrained(tmp_path)
    hw.save_adapter(model, tmp_path / "adapter")
    for loaded in (AutoModel.from_pretrained(tmp_path), hw.load_adapter(hf.ViTModel(config), tmp_path / "adapter")):
        assert len(hw.scheme_parameters(loaded)) == 2
