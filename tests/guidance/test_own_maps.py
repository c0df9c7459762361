"""Models that never ask transformers' interface, guided by the maps that they return."""

import pytest
import torch

import headwise as hw
from tests.guidance.test_attaching import batch, build


@pytest.mark.parametrize("name", ["mpnet", "deberta", "bert"])
def test_guides_read_a_models_own_maps(name: str) -> None:
    model, inputs = build(name), batch()
    guides = [hw.guides.MapDiscrimination(1.0, name="a"), hw.guides.First(1.0), hw.guides.Next(1.0)]
    implementation = model.config._attn_implementation
    with hw.guiding(model.train(), guides, output_attentions=True) as guided:
        output = model(**inputs)
        assert output.get("attentions") is None, "maps stay where they are needed"
        loss = guided.loss()
    assert model.config._attn_implementation == implementation
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    rows = torch.cat([(x * real[:, None, :, None]).sum(dim=2) * real[:, None] for x in maps], dim=1)
    rows = torch.nn.functional.normalize(rows, dim=-1)
    gram = rows @ rows.mT
    expected = (gram.logsumexp(dim=-1) - gram.diagonal(dim1=1, dim2=2)).mean()
    torch.testing.assert_close(guided.terms["a"], expected.detach())
    loss.backward()
    parameters = [p for n, p in model.named_parameters() if "query" in n or ".q." in n]
    assert parameters
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in parameters if p.dim() == 2)


def test_own_maps_give_what_the_interface_gives() -> None:
    model, inputs = build("bert"), batch()
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


def test_automatic_weights_and_what_maps_do_not_tell() -> None:
    model, inputs = build("mpnet").train(), batch()
    guide = hw.guides.MapDiscrimination("auto")
    with hw.guiding(model, [guide], output_attentions=True) as guided:
        task = model(**inputs).logits.square().mean()
        guided.loss(task)
    assert guide.weight > 0
    with (
        pytest.raises(ValueError, match="a model's own maps do not tell"),
        hw.guiding(model, [hw.guides.Disagreement(1.0)], output_attentions=True),
    ):
        pass
