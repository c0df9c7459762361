"""Models without transformers' AttentionInterface, guided by the weights that they return."""

import pytest
import torch

import headwise as hw
from headwise.inspection.capture import capture_attention
from tests.integrations.tiny_models import build_batch, build_model, hf


@pytest.mark.parametrize("family", ["mpnet", "deberta", "bert"])
def test_guides_read_the_weights_that_a_model_returns(family: str) -> None:
    model, inputs = build_model(family), build_batch()
    guides = [hw.guides.MapDiscrimination(1.0, name="mdg"), hw.guides.First(1.0), hw.guides.Next(1.0)]
    implementation = model.config._attn_implementation
    with hw.guiding(model.train(), guides, output_attentions=True) as guided:
        output = model(**inputs)
        assert output.get("attentions") is None, "callers do not receive the weights"
        loss = guided.loss()
    assert model.config._attn_implementation == implementation
    model.set_attn_implementation("eager")
    attentions = model(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    rows = torch.cat([(x * real[:, None, :, None]).sum(dim=2) * real[:, None] for x in attentions], dim=1)
    rows = torch.nn.functional.normalize(rows, dim=-1)
    similarity = rows @ rows.mT
    expected = (similarity.logsumexp(dim=-1) - similarity.diagonal(dim1=1, dim2=2)).mean()
    torch.testing.assert_close(guided.terms["mdg"], expected.detach())
    loss.backward()
    parameters = [p for name, p in model.named_parameters() if "query" in name or ".q." in name]
    assert parameters
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in parameters if p.dim() == 2)


def test_terms_equal_those_of_the_attention_interface() -> None:
    model, inputs = build_model("bert"), build_batch()
    guides = [
        hw.guides.MapDiscrimination(1.0),
        hw.guides.PatternDecorrelation(1.0),
        hw.guides.First(1.0),
        hw.guides.Next(1.0),
        hw.guides.Previous(1.0),
    ]
    terms = []
    for output_attentions in (False, True):
        with hw.guiding(model.train(), guides, output_attentions=output_attentions) as guided:
            model(**inputs)
            guided.loss()
        terms.append(guided.terms)
    torch.testing.assert_close(terms[0], terms[1])


def test_automatic_weights() -> None:
    model, inputs = build_model("mpnet").train(), build_batch()
    guide = hw.guides.MapDiscrimination("auto")
    with hw.guiding(model, [guide], output_attentions=True) as guided:
        task_loss = model(**inputs).logits.square().mean()
        guided.loss(task_loss)
    assert guide.weight > 0


def test_guides_that_read_outputs_or_values_are_refused() -> None:
    model = build_model("mpnet")
    guides = [hw.guides.Disagreement(1.0)]
    error = pytest.raises(ValueError, match="Disagreement reads values or outputs of heads")
    with error, hw.guiding(model, guides, output_attentions=True):
        pass


def test_maps_of_whole_blocks_are_cut_to_the_length_of_the_text() -> None:
    """BigBird pads its inputs to whole blocks, and returns maps of the padded length."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = hf.BigBirdModel(hf.BigBirdConfig(vocab_size=40, max_position_embeddings=64, block_size=4, **sizes)).eval()
    ids = torch.randint(3, 40, (2, 46))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    (returned,) = model(**inputs, output_attentions=True).attentions
    assert returned.shape[2:] == (48, 48)
    observed = []
    capture_attention(model, inputs, lambda _, rows: observed.append(rows.weights(0, 46)))
    torch.testing.assert_close(observed, [returned[:, :, :46, :46]])
    with hw.guiding(model.train(), [hw.guides.First(1.0)], output_attentions=True, example=inputs) as guided:
        model(**inputs)
        assert guided.loss().isfinite()
