"""Watching a model changes nothing, and what is seen are the maps that it computes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model, GPT2Config, GPT2Model, PreTrainedModel

import headwise as hw
from headwise.errors import UserError
from headwise.inspection import watch
from headwise.integrations import AttentionRows
from headwise.integrations.observing import OBSERVER
from headwise.models import HeadwiseConfig, HeadwiseForSequenceClassification

IDS = torch.tensor([[5, 6, 7, 8, 9, 4, 3], [9, 3, 8, 2, 0, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
TINY: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2}


def bert() -> PreTrainedModel:
    return BertModel(BertConfig(**TINY, initializer_range=1.0))


def retrofitted() -> PreTrainedModel:
    model = bert()
    hw.retrofit(model, hw.DistanceAware)
    for parameter in hw.scheme_parameters(model):
        nn.init.normal_(parameter)
    return model


def gpt2() -> PreTrainedModel:
    config = GPT2Config(vocab_size=30, n_embd=8, n_layer=3, n_head=2, bos_token_id=1, eos_token_id=1)
    return GPT2Model(config)


def ours(scheme: str) -> PreTrainedModel:
    sizes: dict[str, Any] = {"vocab_size": 30, "word_dim": 8, "heads": 2, "head_dim": 4, "layers": 3, "num_labels": 2}
    return HeadwiseForSequenceClassification(HeadwiseConfig(scheme=scheme, **sizes))  # type: ignore[arg-type]


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": bert,
    "retrofitted": retrofitted,
    "gpt2": gpt2,
    "deberta": lambda: DebertaV2Model(DebertaV2Config(**TINY, intermediate_size=8)),
    **{name: partial(ours, name) for name in ("none", "rpr", "transformer-xl", "tener", "distance-aware")},
}


def seen(model: nn.Module, step: int) -> tuple[Any, list[Tensor]]:
    found: list[Tensor] = []

    def see(_: nn.Module, rows: AttentionRows) -> None:
        n = rows.real.shape[1]
        blocks = [rows.weights(start, min(start + step, n)) for start in range(0, n, step)]
        found.append(torch.cat(blocks, dim=2))

    return watch(model, INPUTS, see), found


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_bit_for_bit_those_of_the_unwatched_model(name: str) -> None:
    model = MODELS[name]().eval()
    with torch.no_grad():
        expected = model(**INPUTS)[0]
    output, maps = seen(model, step=2)
    assert torch.equal(output[0], expected)
    assert len(maps) == 3
    with torch.no_grad():
        assert torch.equal(model(**INPUTS)[0], expected)
    assert not any(OBSERVER in module.__dict__ or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_rows_in_blocks_are_the_rows_of_the_maps(name: str) -> None:
    model = MODELS[name]().eval()
    whole, blocks = seen(model, step=7)[1], seen(model, step=3)[1]
    for a, b in zip(whole, blocks, strict=True):
        torch.testing.assert_close(a, b)
        sums = a.sum(dim=-1)
        torch.testing.assert_close(sums[0], torch.ones_like(sums[0]))
        assert not a[1, :, :, 4:].any()  # nobody looks at padding


@pytest.mark.parametrize("name", ["bert", "gpt2", "none", "distance-aware"])
def test_maps_are_those_that_the_model_returns_itself(name: str) -> None:
    model = MODELS[name]().eval()
    found = seen(model, step=3)[1]
    if name in ("bert", "gpt2"):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**INPUTS, output_attentions=True).attentions
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a[0], b[0])
        torch.testing.assert_close(a[1, :, :4], b[1, :, :4])


def test_causal_models_without_a_mask() -> None:
    model, found = gpt2().eval(), []

    def see(_: nn.Module, rows: AttentionRows) -> None:
        found.append(torch.cat([rows.weights(start, start + 1) for start in range(7)], dim=2))

    inputs = {"input_ids": IDS[:1]}
    watch(model, inputs, see)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_it_runs_without_dropout_and_gradients_and_leaves_the_mode_as_it_was() -> None:
    model = bert().train()
    first, second = (seen(model, step=7)[0][0] for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert model.training


def test_a_model_that_cannot_be_seen_is_told() -> None:
    class Blind(BertModel):
        def forward(self, input_ids: Tensor, **_: Any) -> Any:
            return self.embeddings(input_ids)

    with pytest.raises(UserError, match=r"Blind: its attention cannot be seen"):
        watch(Blind(BertConfig(**TINY)), {"input_ids": IDS}, lambda *_: None)
