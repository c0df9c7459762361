"""Guides towards a pattern in whole models: the terms and gradients of their maps, without the maps."""

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.guides import ForwardRecord
from headwise.integrations import hf_attention
from tests.guidance.test_attaching import build

CAUSAL = {"gpt2", "llama"}
#: Models whose scores have terms besides scale · q·k, so that neighbours are read off maps.
OTHER_SCORES = {"t5-encoder", "retrofitted", "late"}
MODELS = ["bert", "modernbert", *sorted(CAUSAL | OTHER_SCORES)]
GUIDES: dict[str, hw.Guide] = {
    "first": hw.guides.First(),
    "delimiter": hw.guides.Delimiter(tokens=[5, 6]),
    "period": hw.guides.Period(tokens=[7], heads=[1]),
    "next": hw.guides.Next(layers=[0, -1]),
    "previous": hw.guides.Previous(),
}
N = 9


class Maps(hw.Guide):
    """Keeps the maps."""

    needs = frozenset({"weights"})

    def term(self, observed: ForwardRecord) -> Tensor:
        self.maps = [layer.weights for layer in observed.layers if layer.weights is not None]
        return torch.stack([weights.sum() for weights in self.maps]).sum()


def model_of(name: str) -> Any:
    """In float64, to the last bit of the rotations that some models make in float32."""
    if name not in ("retrofitted", "late"):
        return build(name).double().train()
    model = build("bert").double()
    adjust: Any = "late-multiply" if name == "late" else "early-multiply"
    hw.retrofit(model, hw.DistanceAware, w_spread=0.3, adjust=adjust)
    return model.train()


def padded(side: str) -> dict[str, Tensor]:
    """Texts of random lengths, one of a single token, one without any target, padded on one side."""
    lengths = torch.tensor([N, 1, *torch.randint(2, N, (3,)).tolist()])
    mask = torch.arange(N) < lengths[:, None]
    mask = mask if side == "right" else mask.flip(1)
    ids = torch.randint(3, 10, (len(lengths), N))
    ids[2] = 3
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def target_of(name: str, inputs: dict[str, Tensor], causal: bool) -> Tensor:
    """T, (B, N, N)."""
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    target = torch.zeros(len(ids), N, N, dtype=torch.float64)
    for b in range(len(ids)):
        first = int(real[b].nonzero()[0])
        for i in range(N):
            for j in range(N):
                wanted = {
                    "first": j == first,
                    "delimiter": int(ids[b, j]) in (5, 6),
                    "period": int(ids[b, j]) == 7,
                    "next": j == i + 1 and not causal,
                    "previous": j == i - 1,
                }
                target[b, i, j] = wanted[name] and real[b, i] and real[b, j]
    return target


def by_maps(name: str, maps: list[Tensor], inputs: dict[str, Tensor], causal: bool) -> Tensor:
    """The mean over layers, texts, heads, rows with a target and real tokens of (P − T)²."""
    guide, real = GUIDES[name], inputs["attention_mask"].bool()
    target, terms = target_of(name, inputs, causal), []
    for weights in maps if guide.layers is None else [maps[i] for i in guide.layers]:
        for b in range(len(target)):
            rows = target[b].any(dim=1)
            chosen = weights[b] if guide.heads is None else weights[b, list(guide.heads)]
            error = (chosen - target[b])[:, rows][:, :, real[b]].square()
            terms.append(error.mean() if rows.any() else error.sum())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_terms_and_gradients_are_those_of_the_maps(name: str, side: str) -> None:
    model, inputs = model_of(name), padded(side)
    parameters = list(model.parameters())
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    keep = Maps()
    with hw.guiding(model, [keep], check=False) as guided:
        model(**inputs)
        guided.loss()
    with hw.guiding(model, list(GUIDES.values()), check=False) as guided:
        model(**inputs)
        terms = guided.losses()
    for guide, term in terms.items():
        expected = by_maps(guide.lower(), keep.maps, inputs, causal=name in CAUSAL)
        torch.testing.assert_close(term, expected, atol=1e-9, rtol=1e-9)
        mine, true = (torch.autograd.grad(x, parameters, **options) for x in (term, expected))
        largest = max(float(gradient.abs().max()) for gradient in true)
        assert (largest == 0) == (guide == "Next" and name in CAUSAL)
        torch.testing.assert_close(mine, true, atol=1e-9 * max(largest, 1.0), rtol=1e-8)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("guide", GUIDES)
def test_no_map_is_built_but_where_scores_are_more_than_products(guide: str, name: str) -> None:
    model, inputs = model_of(name), padded("right")
    with (
        mock.patch.object(hf_attention, "attend", wraps=hw.attend) as attend,
        hw.guiding(model, [GUIDES[guide]], check=False) as guided,
    ):
        model(**inputs)
        guided.loss().backward()
    asked = [call.kwargs for call in attend.call_args_list]
    assert len(asked) == 3
    built = name in OTHER_SCORES and guide in ("next", "previous")
    assert all(call.get("return_weights", False) == built for call in asked)
    assert all(call.get("return_weight_norms", False) for call in asked)


def test_additive_masks_are_not_taken_for_products() -> None:
    model, inputs = model_of("bert"), padded("right")
    real = inputs["attention_mask"].bool()
    added = torch.randn(len(real), 1, N, N, dtype=torch.float64)
    keep = Maps(0.0)
    inputs["attention_mask"] = added.masked_fill(~real[:, None, None], torch.finfo(torch.float64).min)
    with hw.guiding(model, [GUIDES["next"], keep], check=False) as guided:
        model(**inputs)
        loss = guided.loss()
    inputs["attention_mask"] = real.long()
    whole = by_maps("next", keep.maps, inputs, causal=False)
    torch.testing.assert_close(loss, whole, atol=1e-9, rtol=1e-9)
