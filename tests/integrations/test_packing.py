"""Packed batches of Hugging Face models: the outputs and gradients of padded batches, and no padding in the layers."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from headwise.integrations.packing import enable_packing, remove_packing
from tests.integrations import test_softcap_sinks
from tests.integrations.tiny_models import FAMILIES, UNSUPPORTED_FAMILIES, build_batch, build_model, randomize_schemes

hf: Any = transformers

PACKABLE = [*(family for family in FAMILIES if family != "t5-encoder"), "gpt-oss"]


def build(family: str) -> Any:
    model = test_softcap_sinks.build_model(family) if family == "gpt-oss" else build_model(family)
    return model.double().train()


def logits_and_gradients(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    logits = model(**inputs).logits
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)
    return logits, gradients


@pytest.mark.parametrize("family", PACKABLE)
def test_outputs_and_gradients_are_those_of_padded_batches(family: str) -> None:
    model, inputs = build(family), build_batch()
    padded = logits_and_gradients(model, inputs)
    enable_packing(model)
    torch.testing.assert_close(logits_and_gradients(model, inputs), padded, atol=1e-9, rtol=1e-7)
    assert torch.equal(copy.deepcopy(model)(**inputs).logits, model(**inputs).logits)
    remove_packing(model)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    torch.testing.assert_close(logits_and_gradients(model, inputs), padded, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("family", ["roberta", "llama"])
def test_left_padding_schemes_and_checkpointing(family: str) -> None:
    model, inputs = build(family), build_batch()
    if family == "llama":  # reads the last token, and the others the first
        inputs = {name: x.flip(1) for name, x in inputs.items()}
    hw.retrofit(model, hw.RelativePositions)
    randomize_schemes(model)
    padded = logits_and_gradients(model, inputs)
    enable_packing(model)
    torch.testing.assert_close(logits_and_gradients(model, inputs), padded, atol=1e-9, rtol=1e-7)
    model.gradient_checkpointing_enable()
    torch.testing.assert_close(logits_and_gradients(model, inputs), padded, atol=1e-9, rtol=1e-7)


def test_layers_compute_no_padding() -> None:
    model, inputs = build("bert").eval(), build_batch()
    enable_packing(model)
    shapes: list[Any] = []
    for layer in model.bert.encoder.layer:
        layer.attention.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape[:2])))
    model(**inputs)
    assert shapes == [(1, int(inputs["attention_mask"].sum()))] * 3
    shapes.clear()
    model(input_ids=inputs["input_ids"])
    assert shapes == [(3, 9)] * 3


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("t5-encoder", "T5Attention adds a bias by position to its scores, so its batches cannot be packed"),
        *(
            (family, "does not go through transformers' AttentionInterface, so it ca")
            for family in UNSUPPORTED_FAMILIES
        ),
    ],
)
def test_other_models_are_refused_and_left_unchanged(family: str, message: str) -> None:
    model, inputs = build_model(family).eval(), build_batch()
    before = model(**inputs)[0]
    with pytest.raises(hw.UnsupportedAttentionError, match=message):
        enable_packing(model)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model(**inputs)[0], before)


def test_layers_without_attention_are_refused() -> None:
    """Convolutions between the attention layers would mix neighboring texts."""

    class Convolution(nn.Module):
        def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
            return x + x.roll(1, dims=1)

    model = build_model("bert")
    model.bert.encoder.layer.insert(1, Convolution())
    with pytest.raises(ValueError, match="has layers without attention, which may mix the tokens of texts"):
        enable_packing(model)


def test_a_packed_model_cannot_be_guided() -> None:
    model, inputs = build_model("bert").train(), build_batch()
    enable_packing(model)
    with (
        pytest.raises(hw.UnsupportedAttentionError, match="gets packed sequences, whose attention maps cannot be read"),
        hw.guiding(model, [hw.guides.First()], example=inputs),
    ):
        pass


@pytest.mark.parametrize("scheme", [None, hw.DistanceAware])
def test_the_lengths_of_transformers_flattening_collator(scheme: Any) -> None:
    """`DataCollatorWithFlattening` concatenates texts and passes their cumulative lengths to the model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=40, num_key_value_heads=1)).double().eval()
    if scheme is not None:
        hw.retrofit(model, scheme)
        randomize_schemes(model)
    texts = [[5, 6, 7, 8, 9], [11, 12], [3, 4, 5, 6]]
    expected = torch.cat([model(torch.tensor([text])).logits for text in texts], dim=1)
    model.set_attn_implementation("headwise")
    collate = hf.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="pt")
    batch = collate([{"input_ids": text, "labels": text} for text in texts])
    batch.pop("labels")
    assert batch["cu_seq_lens_q"].tolist() == [[0, 5, 7, 11]] or batch["cu_seq_lens_q"].tolist() == [0, 5, 7, 11]
    torch.testing.assert_close(model(**batch).logits, expected, atol=1e-6, rtol=1e-6)
