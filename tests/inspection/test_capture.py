"""Tests of captured attention: the model's outputs do not change, and the maps are those that it computes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
)

import headwise as hw
from headwise.errors import UserError
from headwise.inspection import capture_attention
from headwise.integrations import AttentionRows
from headwise.integrations.observing import OBSERVER
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification

hf: Any = transformers  # Longformer has no types
IDS = torch.tensor([[5, 6, 7, 8, 9, 4, 3], [9, 3, 8, 2, 0, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
TINY: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}


def build_bert() -> PreTrainedModel:
    return BertModel(BertConfig(**TINY, initializer_range=1.0))


def build_retrofitted() -> PreTrainedModel:
    model = build_bert()
    hw.retrofit(model, hw.DistanceAware)
    for parameter in hw.scheme_parameters(model):
        nn.init.normal_(parameter)
    return model


def build_gpt2() -> PreTrainedModel:
    config = GPT2Config(vocab_size=30, n_embd=8, n_layer=3, n_head=2, bos_token_id=1, eos_token_id=1)
    return GPT2Model(config)


def build_headwise(scheme: str) -> PreTrainedModel:
    sizes: dict[str, Any] = {"vocab_size": 30, "word_dim": 8, "heads": 2, "head_dim": 4, "layers": 3, "num_labels": 2}
    return HeadwiseForSequenceClassification(HeadwiseConfig(scheme=scheme, **sizes))  # type: ignore[arg-type]


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": build_bert,
    "retrofitted": build_retrofitted,
    "gpt2": build_gpt2,
    "deberta": lambda: DebertaV2Model(DebertaV2Config(**TINY, intermediate_size=8)),
    **{name: partial(build_headwise, name) for name in ("none", "rpr", "transformer-xl", "tener", "distance-aware")},
}


def capture(model: nn.Module, step: int, inputs: dict[str, Tensor] = INPUTS) -> tuple[Any, list[Tensor]]:
    """Return the model's output and its maps, computed `step` rows at a time."""
    maps: list[Tensor] = []

    def observer(_: nn.Module, rows: AttentionRows) -> None:
        n = rows.real.shape[1]
        blocks = [rows.weights(start, min(start + step, n)) for start in range(0, n, step)]
        maps.append(torch.cat(blocks, dim=2))

    return capture_attention(model, inputs, observer), maps


@pytest.mark.parametrize("name", MODELS)
def test_outputs_do_not_change(name: str) -> None:
    model = MODELS[name]().eval()
    with torch.no_grad():
        expected = model(**INPUTS)[0]
    output, maps = capture(model, step=2)
    assert torch.equal(output[0], expected)
    assert len(maps) == 3
    with torch.no_grad():
        assert torch.equal(model(**INPUTS)[0], expected)
    assert not any(OBSERVER in module.__dict__ or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_maps_do_not_depend_on_the_block_size(name: str) -> None:
    model = MODELS[name]().eval()
    one_block, blocks = capture(model, step=7)[1], capture(model, step=3)[1]
    for maps, expected in zip(blocks, one_block, strict=True):
        torch.testing.assert_close(maps, expected)
        sums = maps.sum(dim=-1)
        torch.testing.assert_close(sums[0], torch.ones_like(sums[0]))
        assert not maps[1, :, :, 4:].any()  # padding keys have no weight


@pytest.mark.parametrize("name", ["bert", "gpt2", "none", "distance-aware"])
def test_maps_equal_output_attentions(name: str) -> None:
    model = MODELS[name]().eval()
    captured = capture(model, step=3)[1]
    if name in ("bert", "gpt2"):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**INPUTS, output_attentions=True).attentions
    for maps, expected in zip(captured, attentions, strict=True):
        torch.testing.assert_close(maps[0], expected[0])
        torch.testing.assert_close(maps[1, :, :4], expected[1, :, :4])


def test_causal_models_without_attention_mask() -> None:
    model, inputs = build_gpt2().eval(), {"input_ids": IDS[:1]}
    captured = capture(model, step=1, inputs=inputs)[1]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(**inputs, output_attentions=True).attentions
    for maps, expected in zip(captured, attentions, strict=True):
        torch.testing.assert_close(maps, expected)


def test_dropout_and_gradients_are_disabled_and_the_training_mode_is_restored() -> None:
    model = build_bert().train()
    first, second = (capture(model, step=7)[0][0] for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert model.training


@pytest.mark.parametrize("length", [5, 8])
def test_models_that_return_no_maps_of_pairs_are_errors(length: int) -> None:
    """Longformer returns weights by offset in its window."""
    model = hf.LongformerModel(hf.LongformerConfig(**TINY, attention_window=4, intermediate_size=8))
    ids = torch.randint(2, 30, (1, length))
    with pytest.raises(UserError, match=r"LongformerModel: its attention is not accessible; .* not of all pairs of"):
        capture_attention(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, lambda *_: None)


def test_models_without_accessible_attention_are_errors() -> None:
    class NoAttention(BertModel):
        def forward(self, input_ids: Tensor, **_: Any) -> Any:
            return self.embeddings(input_ids)

    with pytest.raises(UserError, match=r"NoAttention: its attention is not accessible"):
        capture_attention(NoAttention(BertConfig(**TINY)), {"input_ids": IDS}, lambda *_: None)
