"""Schemes that are defined outside of headwise, in `retrofit`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

import headwise as hw
from headwise.attention.types import SchemeTerms
from tests.integrations.tiny_models import build_batch, build_model, run_model


class LearnedAlibi(hw.Scheme):
    """Adds −slope · |i − j| to the scores, with a learned slope for each head."""

    def __init__(self, heads: int, slope: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.slopes = nn.Parameter(torch.full((heads,), slope))

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k, coefficients=self.coefficients, adjust="early-add")

    def coefficients(self, length: int) -> Tensor:
        return -self.slopes[:, None] * torch.arange(length, device=self.slopes.device)


def test_outputs_are_those_of_the_formula() -> None:
    """The same bias as an additive mask of transformers' own attention gives the same outputs."""
    model, inputs = build_model("bert").double(), build_batch()
    n = inputs["input_ids"].shape[1]
    distances = (torch.arange(n)[:, None] - torch.arange(n)).abs().double()
    mask = (-0.3 * distances).expand(3, 1, n, n)
    mask = mask.masked_fill(inputs["attention_mask"][:, None, None] == 0, torch.finfo(torch.float64).min)
    with torch.no_grad():
        expected = model.eval()(input_ids=inputs["input_ids"], attention_mask=mask).logits
    hw.retrofit(model, LearnedAlibi, slope=0.3)
    torch.testing.assert_close(run_model(model, inputs), expected, atol=1e-7, rtol=1e-6)
    model.train()(**inputs).logits.square().sum().backward()
    assert all(float(p.grad.abs().min()) > 0 for p in hw.scheme_parameters(model) if p.grad is not None)


def test_saved_models_are_loaded_once_the_class_is_imported(tmp_path: Path) -> None:
    model, inputs = build_model("bert"), build_batch()
    hw.retrofit(model, LearnedAlibi, slope=0.3)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(run_model(loaded, inputs), run_model(model, inputs))
    hw.save_adapter(model, tmp_path / "adapter")
    loaded_adapter = hw.load_adapter(build_model("bert"), tmp_path / "adapter")
    assert torch.equal(run_model(loaded_adapter, inputs), run_model(model, inputs))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace(f"{__name__}.LearnedAlibi", "my.schemes.LearnedAlibi"))
    with pytest.raises(ValueError, match=r"import LearnedAlibi from my\.schemes first"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_a_name_of_an_own_scheme_is_its_module_and_class() -> None:
    model: Any = hw.retrofit(build_model("bert"), f"{__name__}.LearnedAlibi")
    assert model.config.headwise["scheme"] == f"{__name__}.LearnedAlibi"
    with pytest.raises(ValueError, match=r"import Missing from my\.schemes first"):
        hw.retrofit(build_model("bert"), "my.schemes.Missing")
