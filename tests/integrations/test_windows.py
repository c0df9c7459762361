"""`set_window`: sliding windows with global tokens, exact against a dense mask."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

import headwise as hw
from headwise.integrations import packing
from headwise.integrations.window_attention import Window
from tests.integrations.tiny_models import VOCAB_SIZE, build_model

SCHEMES: dict[str, Any] = {
    "plain": lambda: hw.Plain(),
    "distance": lambda: hw.DistanceAware(2, w_std=0.2, v_std=0.5),
    "distance-late-multiply": lambda: hw.DistanceAware(2, adjust="late-multiply", w_std=0.2),
    "relative": lambda: hw.RelativePositions(2, 8, k=3, std=0.5),
    "t5-bias": lambda: hw.T5Bias(2, std=0.5),
    "disentangled": lambda: hw.Disentangled(2, 8, max_distance=8, std=0.5),
    "tener": lambda: hw.Tener(2, 8),
    "alibi": lambda: hw.Alibi(2),
}


def dense_mask(length: int, left: int, right: int, global_tokens: int) -> Tensor:
    """Which query sees which key, pair by pair."""
    mask = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for j in range(length):
            is_near = i - left <= j <= i + right
            mask[i, j] = is_near or i < global_tokens or j < global_tokens
    return mask


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("left", "right", "count"), [(3, 3, 1), (2, 4, 3), (0, 0, 1), (5, 2, 0)])
def test_outputs_and_gradients_are_those_of_a_dense_mask(scheme: str, left: int, right: int, count: int) -> None:
    torch.manual_seed(0)
    term = SCHEMES[scheme]().double()
    q, k, v = (torch.randn(2, 2, 20, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    padding = torch.ones(2, 20, dtype=torch.bool)
    padding[1, 14:] = False
    target = torch.randn(2, 2, 20, 8, dtype=torch.float64)
    real = padding[:, None, :, None]

    expected = hw.attend(q, k, v, scheme=term, key_padding=padding, mask=dense_mask(20, left, right, count), offset=0)
    actual = Window(left, right, count).attend(q, k, v, padding[:, None, None], scheme=term)
    torch.testing.assert_close(actual * real, expected * real, rtol=1e-9, atol=1e-10)
    parameters = [q, k, v, *(p for p in term.parameters() if p.requires_grad)]
    grads = [
        torch.autograd.grad(((output * target) * real).sum(), parameters, allow_unused=True)
        for output in (expected, actual)
    ]
    for x, y in zip(*grads, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(y, x, rtol=1e-8, atol=1e-9)


def test_a_query_without_any_key_gives_zero() -> None:
    q, k, v = (torch.randn(1, 1, 12, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    padding = torch.zeros(1, 12, dtype=torch.bool)
    padding[0, 10:] = True  # the global token is padding, and so is every key of the first windows
    output = Window(2, 2, 1).attend(q, k, v, padding[:, None, None], scheme=hw.Plain())
    assert torch.equal(output[:, :, 1:7], torch.zeros(1, 1, 6, 4, dtype=torch.float64))
    output.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def scores(model: Any, length: int = 30, **options: Any) -> Tensor:
    ids = torch.randint(3, VOCAB_SIZE, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, length - 5 :] = 0
    with torch.no_grad():
        logits: Tensor = model.eval()(input_ids=ids.where(mask == 1, 0), attention_mask=mask, **options).logits
    return logits


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "albert"])
def test_models_give_the_outputs_of_a_dense_mask(family: str) -> None:
    model = build_model(family).double()
    full = scores(model)
    ids_mask = torch.ones(2, 30, dtype=torch.bool)
    ids_mask[1, 25:] = False
    mask = (dense_mask(30, 4, 4, 1)[None] & ids_mask[:, None])[:, None]
    ids = torch.randint(3, VOCAB_SIZE, (2, 30), generator=torch.Generator().manual_seed(1)).where(ids_mask, 0)
    with torch.no_grad():
        expected = model.eval()(input_ids=ids, attention_mask=mask).logits
    assert (expected - full).abs().max() > 1e-6, "the window changes nothing, so the test shows nothing"
    hw.set_window(model, 4, global_tokens=1)
    torch.testing.assert_close(scores(model), expected, rtol=1e-6, atol=1e-9)
    hw.set_window(model, 29)
    torch.testing.assert_close(scores(model), full, rtol=1e-6, atol=1e-9)
    hw.set_window(model, None)
    assert torch.equal(scores(model), full)
    assert model.config._attn_implementation != "headwise"


@pytest.mark.parametrize("window_first", [True, False])
def test_windows_are_saved_and_work_with_schemes(window_first: bool, tmp_path: Path) -> None:
    model = build_model("bert")
    if window_first:
        hw.set_window(model, 4)
    hw.retrofit(model, hw.RelativePositions)
    for parameter in hw.scheme_parameters(model):
        torch.nn.init.normal_(parameter)
    unlimited = scores(model) if not window_first else None
    hw.set_window(model, (4, 4))
    hw.extend_positions(model, 128)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(scores(loaded), scores(model))
    if unlimited is not None:
        assert (scores(loaded) - unlimited).abs().max() > 1e-6
    hw.remove_scheme(loaded)
    loaded.save_pretrained(tmp_path / "plain")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain")
    torch.testing.assert_close(scores(plain), scores(hw.set_window(build_copy(loaded), 4)))


def build_copy(model: Any) -> Any:
    """A model of transformers with the same weights and no window."""
    copy = build_model("bert")
    hw.extend_positions(copy, 128)
    copy.load_state_dict(model.state_dict())
    return copy


def test_weights_are_zero_outside_of_the_window() -> None:
    model = hw.set_window(build_model("bert"), 3)
    ids = torch.randint(3, VOCAB_SIZE, (1, 20))
    with torch.no_grad():
        attentions = model.eval()(input_ids=ids, output_attentions=True).attentions
    mask = dense_mask(20, 3, 3, 1)
    for weights in attentions:
        assert (weights[0, :, ~mask] == 0).all()
        assert (weights[0, :, mask] > 0).all()


def test_layers_with_their_own_window_keep_it() -> None:
    model = build_model("modernbert").double()
    before = scores(model)
    hw.set_window(model, 100)
    torch.testing.assert_close(scores(model), before, rtol=1e-6, atol=1e-9)
    hw.set_window(model, 6)
    assert (scores(model) - before).abs().max() > 1e-9


def test_unsupported_models_and_arguments() -> None:
    bert = build_model("bert")
    for window in (-1, (1, 2, 3), 2.5, True):
        with pytest.raises(ValueError, match="window must be a number of tokens or"):
            hw.set_window(bert, window)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="global_tokens a number, 0 or more"):
        hw.set_window(bert, 4, global_tokens=-1)
    for family in ("gpt2", "llama"):
        model = build_model(family)
        before = scores(model)
        with pytest.raises(hw.UnsupportedAttentionError, match="encoder"):
            hw.set_window(model, 4)
        assert torch.equal(scores(model), before)
    with pytest.raises(hw.UnsupportedAttentionError, match="AttentionInterface, so it cannot get a window"):
        hw.set_window(build_model("mpnet"), 4)
    hw.set_window(bert, 4)
    with pytest.raises(hw.UnsupportedAttentionError, match="has a window"):
        packing.enable_packing(bert)


def test_models_without_a_window_are_not_changed() -> None:
    model = build_model("bert")
    hw.set_window(model, None)
    assert not hasattr(model.config, "headwise_window")
    assert model.config._attn_implementation != "headwise"
