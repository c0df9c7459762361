"""Maps read off a model are the ones that transformers' own eager attention computes."""

import pytest
import torch
from transformers import BertConfig, BertModel, DebertaV2Config, DebertaV2Model

import headwise as hw
from headwise.inspection.attention_maps import attention_maps

IDS = torch.tensor([[5, 6, 7, 8], [9, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.fixture
def model() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, initializer_range=1.0)
    return BertModel(config)


def test_maps_are_those_of_eager_attention(model: BertModel) -> None:
    model.train()  # and yet without dropout
    maps = attention_maps(model, {"input_ids": IDS, "attention_mask": MASK})
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model.eval()(IDS, attention_mask=MASK, output_attentions=True).attentions
    for found, wanted in zip(maps, expected, strict=True):
        torch.testing.assert_close(found[0], wanted[0])
        torch.testing.assert_close(found[1, :, :2], wanted[1, :, :2])  # rows of padding are nobody's


def test_a_scheme_shows_in_the_maps(model: BertModel) -> None:
    inputs = {"input_ids": IDS[:1]}
    before = attention_maps(model, inputs)
    hw.retrofit(model, hw.DistanceAware)
    torch.testing.assert_close(attention_maps(model, inputs), before)
    for parameter in hw.scheme_parameters(model):
        torch.nn.init.constant_(parameter, -2.0)
    assert (attention_maps(model, inputs) - before).abs().max() > 0.1


def test_a_model_that_cannot_be_read_is_told() -> None:
    config = DebertaV2Config(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(hw.UnsupportedAttentionError, match="DebertaV2Model"):
        attention_maps(DebertaV2Model(config), {"input_ids": IDS[:1]})
