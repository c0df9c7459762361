"""Pattern guides in whole models: the same terms and gradients as from attention maps, without building the maps."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.integrations.tiny_models import KeepRecords, build_model

CAUSAL_MODELS = {"gpt2", "llama"}
#: Models whose scores are not scale · q·k alone, so that neighbor weights are read from attention maps.
BIASED_MODELS = {"t5-encoder", "retrofitted", "late-multiply"}
MODELS = ["bert", "modernbert", *sorted(CAUSAL_MODELS | BIASED_MODELS)]
GUIDES: dict[str, hw.Guide] = {
    "first": hw.guides.First(),
    "delimiter": hw.guides.Delimiter(tokens=[5, 6]),
    "period": hw.guides.Period(tokens=[7], heads=[1]),
    "next": hw.guides.Next(layers=[0, -1]),
    "previous": hw.guides.Previous(),
}
N = 9


def build_double_model(name: str) -> Any:
    if name not in ("retrofitted", "late-multiply"):
        return build_model(name).double().train()
    model = build_model("bert").double()
    adjust: Any = "late-multiply" if name == "late-multiply" else "early-multiply"
    hw.retrofit(model, hw.DistanceAware, w_std=0.3, adjust=adjust)
    return model.train()


def build_padded_batch(side: str) -> dict[str, Tensor]:
    """Texts of random lengths, one of a single token, one without any target, padded on one side."""
    lengths = torch.tensor([N, 1, *torch.randint(2, N, (3,)).tolist()])
    mask = torch.arange(N) < lengths[:, None]
    mask = mask if side == "right" else mask.flip(1)
    ids = torch.randint(3, 10, (len(lengths), N))
    ids[2] = 3
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def build_target(name: str, inputs: dict[str, Tensor]) -> Tensor:
    """Return T, (B, N, N), including keys that a mask hides."""
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    target = torch.zeros(len(ids), N, N, dtype=torch.float64)
    for b in range(len(ids)):
        first = int(real[b].nonzero()[0])
        for i in range(N):
            for j in range(N):
                is_target = {
                    "first": j == first,
                    "delimiter": int(ids[b, j]) in (5, 6),
                    "period": int(ids[b, j]) == 7,
                    "next": j == i + 1,
                    "previous": j == i - 1,
                }
                target[b, i, j] = is_target[name] and real[b, i] and real[b, j]
    return target


def term_from_maps(name: str, maps: list[Tensor], inputs: dict[str, Tensor]) -> Tensor:
    """Return the mean over layers, texts with a target, heads, rows with a target and real tokens of (P − T)²."""
    guide, real = GUIDES[name], inputs["attention_mask"].bool()
    terms = []
    for weights in maps if guide.layers is None else [maps[i] for i in guide.layers]:
        target = build_target(name, inputs) * (weights > 0).all(dim=1)  # hidden keys have weight 0
        for b in range(len(target)):
            rows = target[b].any(dim=1)
            guided = weights[b] if guide.heads is None else weights[b, list(guide.heads)]
            error = (guided - target[b])[:, rows][:, :, real[b]].square()
            terms += [error.mean()] if rows.any() else []
    return torch.stack(terms).mean() if terms else 0.0 * maps[0].sum()


def record_maps(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    keeper = KeepRecords("weights")
    with hw.guiding(model, [keeper], check=False) as guided:
        model(**inputs)
        guided.loss()
    return [layer.weights for layer in keeper.records if layer.weights is not None]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_terms_and_gradients_equal_those_of_attention_maps(name: str, side: str) -> None:
    model, inputs = build_double_model(name), build_padded_batch(side)
    parameters = list(model.parameters())
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    maps = record_maps(model, inputs)
    with hw.guiding(model, list(GUIDES.values()), check=False) as guided:
        model(**inputs)
        terms = guided.losses()
    for guide, term in terms.items():
        expected = term_from_maps(guide.lower(), maps, inputs)
        torch.testing.assert_close(term, expected, atol=1e-9, rtol=1e-9)
        gradients, expected_gradients = (torch.autograd.grad(x, parameters, **options) for x in (term, expected))
        largest = max(float(gradient.abs().max()) for gradient in expected_gradients)
        assert (largest == 0) == (guide == "Next" and name in CAUSAL_MODELS)
        torch.testing.assert_close(gradients, expected_gradients, atol=1e-9 * max(largest, 1.0), rtol=1e-8)


@pytest.mark.parametrize("name", ["gpt2", "modernbert"])
@pytest.mark.parametrize("guide", ["first", "delimiter", "pairs"])
def test_queries_that_see_no_target_have_no_gradient(name: str, guide: str) -> None:
    """In a causal model, these queries are before the first target; in a local layer, they are far from all targets."""
    token = 7
    guides: dict[str, hw.Guide] = {
        "first": hw.guides.First(layers=[1]),
        "delimiter": hw.guides.Delimiter(tokens=[token], layers=[1]),
        "pairs": hw.guides.MutualInformation(texts=[[token, 3]] * 2 + [[4], [5]], layers=[1]),
    }
    model, keeper = build_double_model(name), KeepRecords("weights")
    ids = torch.tensor([[3, 4, 3, 5, token, 3, 4, 5, 3]])
    with hw.guiding(model, [guides[guide], keeper], check=False) as guided:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
        term = guided.losses()[guides[guide].name]
    layer = keeper.records[1]
    gradient = torch.autograd.grad(term, layer.q)[0].abs().amax(dim=(0, 1, 3))
    assert layer.weights is not None
    visible = (layer.weights[0] > 0).all(dim=0)
    if guide == "pairs":  # every token's target is the other token of its pair
        is_pair = ((ids[0][:, None] == token) & (ids[0] == 3)) | ((ids[0][:, None] == 3) & (ids[0] == token))
        has_target = (visible & is_pair).any(dim=1)
    else:
        has_target = (visible & (torch.arange(N) == 0 if guide == "first" else ids[0] == token)).any(dim=1)
    has_choice = visible.sum(dim=1) > 1  # a query that sees one key only has no gradient
    assert torch.equal(gradient > 0, has_target & has_choice)
    assert bool(has_target.all()) == (name == "gpt2" and guide == "first")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("guide", GUIDES)
def test_maps_are_built_only_for_neighbors_in_models_with_other_scores(guide: str, name: str) -> None:
    model, inputs = build_double_model(name), build_padded_batch("right")
    keeper = KeepRecords(*GUIDES[guide].required_fields)
    with hw.guiding(model, [GUIDES[guide], keeper], check=False) as guided:
        model(**inputs)
        guided.loss().backward()
    assert len(keeper.records) == 3
    needs_maps = name in BIASED_MODELS and guide in ("next", "previous")
    assert all((layer.weights is not None) == needs_maps for layer in keeper.records)
    assert all(layer.weight_norms is not None for layer in keeper.records)


def test_additive_masks_with_a_bias() -> None:
    model, inputs = build_double_model("bert"), build_padded_batch("right")
    real = inputs["attention_mask"].bool()
    bias = torch.randn(len(real), 1, N, N, dtype=torch.float64)
    inputs["attention_mask"] = bias.masked_fill(~real[:, None, None], torch.finfo(torch.float64).min)
    maps = record_maps(model, inputs)
    with hw.guiding(model, [GUIDES["next"]], check=False) as guided:
        model(**inputs)
        loss = guided.loss()
    inputs["attention_mask"] = real.long()
    expected = term_from_maps("next", maps, inputs)
    torch.testing.assert_close(loss, expected, atol=1e-9, rtol=1e-9)
