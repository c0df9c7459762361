"""Gemma 2 (soft-capped scores) and GPT-OSS (attention sinks), with sliding-window layers, against transformers.

All in float64: transformers' own modules are patched where they compute in float32.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from headwise.inspection import capture_attention
from headwise.integrations import use_headwise_attention
from tests.integrations.tiny_models import KeepRecords, build_batch, first_output, randomize_schemes, run_model

hf: Any = transformers

_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 16,
    "vocab_size": 40,
    "pad_token_id": 0,
    "num_labels": 3,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "attention_dropout": 0.0,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2, "experts_implementation": "eager"}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gemma-2": lambda: hf.Gemma2ForSequenceClassification(hf.Gemma2Config(**_SIZES, attn_logit_softcapping=2.0)),
    "gpt-oss": lambda: hf.GptOssForSequenceClassification(hf.GptOssConfig(**_SIZES, **_EXPERTS)),
}
TOLERANCE: dict[str, Any] = {"atol": 1e-10, "rtol": 1e-8}


@pytest.fixture(autouse=True)
def compute_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = torch.softmax
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def build_model(name: str) -> Any:
    torch.manual_seed(0)
    model: Any = MODELS[name]().double().train()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.5)  # large enough for the softcap and the sinks to matter
            if "sinks" in parameter_name:
                parameter.normal_(0.0, 2.0)
    model.set_attn_implementation("eager")
    return model


def weights_without_padding(weights: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    real = inputs["attention_mask"].bool()[:, None, :, None]
    return [x * real for x in weights]


@pytest.mark.parametrize("name", MODELS)
def test_guided_outputs_received_attention_and_gradients_are_those_of_eager_attention(name: str) -> None:
    model, inputs = build_model(name), build_batch()
    parameters = list(model.parameters())
    expected = model(**inputs, output_attentions=True)
    received = [x.sum(dim=2) for x in weights_without_padding(expected.attentions, inputs)]
    neighbors = [x.diagonal(-1, dim1=-2, dim2=-1) for x in weights_without_padding(expected.attentions, inputs)]
    keeper = KeepRecords("neighbor_weights", "weight_norms")
    with hw.guiding(model, [hw.guides.MapDiscrimination(), hw.guides.Previous(), keeper]) as guided:
        outputs = model(**inputs)
        assert guided.loss() > 0
        records = keeper.records
    torch.testing.assert_close(outputs.logits, expected.logits, **TOLERANCE)
    real = inputs["attention_mask"].bool()[:, None]
    for record, expected_received, previous in zip(records, received, neighbors, strict=True):
        torch.testing.assert_close(record.received, expected_received, **TOLERANCE)
        torch.testing.assert_close(record.neighbor_weights(-1)[..., 1:] * real[..., 1:], previous, **TOLERANCE)

    def gradients(logits: Tensor, received: list[Tensor]) -> tuple[Tensor, ...]:
        loss = logits.square().sum() + sum(x.square().sum() for x in received)
        return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)

    actual = gradients(outputs.logits, [record.received for record in records])
    torch.testing.assert_close(actual, gradients(expected.logits, received), atol=1e-9, rtol=1e-7)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", MODELS)
def test_headwise_attention_without_guides_is_eager_attention(name: str) -> None:
    model, inputs = build_model(name), build_batch()
    expected = run_model(model, inputs)
    with use_headwise_attention(model):
        torch.testing.assert_close(run_model(model, inputs), expected, **TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_observed_and_returned_weights_are_those_of_eager_attention(name: str) -> None:
    model, inputs = build_model(name).eval(), build_batch()
    expected = weights_without_padding(model(**inputs, output_attentions=True).attentions, inputs)
    captured: list[Tensor] = []
    output = capture_attention(
        model, inputs, lambda _, rows: captured.append(torch.cat([rows.weights(0, 5), rows.weights(5, 9)], dim=2))
    )
    torch.testing.assert_close(weights_without_padding(captured, inputs), expected, **TOLERANCE)
    torch.testing.assert_close(output.logits, run_model(model, inputs), **TOLERANCE)
    model.set_attn_implementation("headwise")
    attentions = model(**inputs, output_attentions=True).attentions
    torch.testing.assert_close(weights_without_padding(attentions, inputs), expected, **TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_a_retrofitted_model(name: str, tmp_path: Any) -> None:
    """A neutral scheme changes nothing; a trained one is computed by every implementation, saved and loaded."""
    model, inputs = build_model(name), build_batch()
    expected = run_model(model, inputs)
    hw.retrofit(model, hw.DistanceAware)
    torch.testing.assert_close(run_model(model, inputs), expected, **TOLERANCE)
    randomize_schemes(model)
    trained = run_model(model, inputs)
    assert not torch.allclose(trained, expected, atol=1e-3)
    model.train()
    first_output(model(**inputs), inputs["attention_mask"]).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in hw.scheme_parameters(model))
    model.set_attn_implementation("eager")
    torch.testing.assert_close(run_model(model, inputs), trained, **TOLERANCE)
    model.save_pretrained(tmp_path)
    loaded = hf.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, dtype=torch.float64, **({"experts_implementation": "eager"} if name == "gpt-oss" else {})
    )
    torch.testing.assert_close(run_model(loaded, inputs), trained, **TOLERANCE)


@pytest.mark.parametrize("name", ["Gemma2", "GptOss"])
def test_generation_with_a_scheme_and_a_cache(name: str) -> None:
    torch.manual_seed(0)
    options = _SIZES | (_EXPERTS if name == "GptOss" else {})
    model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**options)).double().eval()
    hw.retrofit(model, hw.DistanceAware)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    ids, mask = torch.randint(3, 40, (2, 6)), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    sampling: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **sampling)
    assert torch.equal(model.generate(ids, use_cache=True, **sampling), expected)
