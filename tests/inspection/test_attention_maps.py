"""Tests of attention maps against the eager attention of transformers."""

import pytest
import torch
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model

import headwise as hw
from headwise.inspection import attention_maps

IDS = torch.tensor([[5, 6, 7, 8], [9, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.fixture
def model() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, initializer_range=1.0)
    return BertModel(config)


def test_maps_equal_those_of_eager_attention(model: BertModel) -> None:
    model.train()  # dropout must be disabled nevertheless
    maps = attention_maps(model, {"input_ids": IDS, "attention_mask": MASK})
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model.eval()(IDS, attention_mask=MASK, output_attentions=True).attentions
    for layer_maps, expected in zip(maps, attentions, strict=True):
        torch.testing.assert_close(layer_maps[0], expected[0])
        torch.testing.assert_close(layer_maps[1, :, :2], expected[1, :, :2])  # rows of padding are undefined


def test_maps_include_the_scheme(model: BertModel) -> None:
    inputs = {"input_ids": IDS[:1]}
    before = attention_maps(model, inputs)
    hw.retrofit(model, hw.DistanceAware)
    torch.testing.assert_close(attention_maps(model, inputs), before)
    for parameter in hw.scheme_parameters(model):
        torch.nn.init.constant_(parameter, -2.0)
    assert (attention_maps(model, inputs) - before).abs().max() > 0.1


def test_unsupported_models_are_errors() -> None:
    config = DebertaV2Config(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(hw.UnsupportedAttentionError, match="DebertaV2Model"):
        attention_maps(DebertaV2Model(config), {"input_ids": IDS[:1]})
