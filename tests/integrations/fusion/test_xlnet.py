"""The second stream of XLNet, whose queries may see no key."""

import dataclasses
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.errors import UserError
from headwise.inspection.capture import capture_attention
from headwise.integrations import UnsupportedAttentionError
from headwise.integrations.fusion import xlnet
from headwise.integrations.fusion.attention import fused_attention
from headwise.integrations.fusion.xlnet import StreamMask
from tests.integrations.fusion.cases import CASES, build_model
from tests.integrations.fusion.test_families import TOLERANCE

LENGTH = 9


def build_xlnet() -> Any:
    """Return a tiny model whose second stream runs in float64, to which the model does not convert its positions."""
    model = build_model(CASES["xlnet"]).eval()
    for layer in model.layer:
        layer.rel_attn.register_forward_pre_hook(lambda _, args: (*args[:4], args[4].double(), *args[5:]))
    return model


def permutation_batch(*, targets: int = LENGTH) -> dict[str, Any]:
    """Return two texts in an order in which the first token of each sees no other one, and predict some tokens."""
    torch.manual_seed(1)
    order = torch.stack([torch.randperm(LENGTH) for _ in range(2)])
    chosen = order.argsort(dim=1)[:, :targets]  # the first ones of the order are among them
    return {
        "input_ids": torch.randint(2, 40, (2, LENGTH)),
        "perm_mask": (order[:, None] >= order[:, :, None]).double(),
        "target_mapping": torch.nn.functional.one_hot(chosen, LENGTH).double(),
    }


def padding_mask(num_real: int) -> torch.Tensor:
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, num_real:] = 0
    return mask


BATCHES: dict[str, dict[str, Any]] = {
    "all-targets": permutation_batch(),
    "few-targets": permutation_batch(targets=2),
    "padding": permutation_batch() | {"attention_mask": padding_mask(6)},
    "text-without-tokens": permutation_batch() | {"attention_mask": padding_mask(0)},
    "no-visible-token": permutation_batch() | {"perm_mask": torch.ones(2, LENGTH, LENGTH).double()},
    "segments": permutation_batch() | {"token_type_ids": torch.arange(LENGTH).gt(4).long().expand(2, -1)},
    "first-stream": {"input_ids": torch.randint(2, 40, (2, LENGTH)), "attention_mask": padding_mask(0)},
    "memories": permutation_batch() | {"mems": [torch.randn(5, 2, 36).double() for _ in range(2)]},
}


def run(model: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """Return outputs, attention weights and gradients."""
    model.zero_grad()
    outputs = model(**batch, output_attentions=True)
    outputs.last_hidden_state.pow(3).sum().backward()
    return outputs.last_hidden_state, outputs.attentions, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", BATCHES)
def test_rows_that_see_no_token_are_those_of_the_model(name: str) -> None:
    model = build_xlnet()
    expected = run(model, BATCHES[name])
    hw.fuse_attention(model, verbose=False)
    actual = run(model, BATCHES[name])
    assert actual[0].isfinite().all()
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_compiled_second_stream() -> None:
    model = build_xlnet()
    expected = run(model, BATCHES["padding"])
    hw.fuse_attention(model, verbose=False)
    torch.compiler.reset()
    for layer in model.layer:
        layer.rel_attn.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(run(model, BATCHES["padding"]), expected, **TOLERANCE)


def test_dropout_of_rows_that_see_no_token() -> None:
    """The model drops weights of these rows, too."""
    case = dataclasses.replace(CASES["xlnet"], config={**CASES["xlnet"].config, "dropout": 0.5})
    model = build_model(case).train()
    hw.fuse_attention(model, verbose=False)
    layer = model.layer[0].rel_attn
    mask = StreamMask(torch.zeros(1, 1, 5, 5, dtype=torch.bool), None, is_second=True)
    q, k, v = (torch.randn(1, 3, 5, 12).double() for _ in range(3))
    table = torch.randn(3, 10, 12).double()
    first, second = (layer.attend(q, k, v, table, None, mask)[0] for _ in range(2))
    assert not torch.equal(first, second)
    layer.eval()
    expected = v.mean(dim=2).flatten(1).expand(5, 1, -1)
    torch.testing.assert_close(layer.attend(q, k, v, table, None, mask)[0], expected)


@pytest.mark.parametrize("has_padding", [False, True])
def test_masks_are_converted_once_and_dropped_without_padding(
    has_padding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_xlnet().eval()
    ids = torch.randint(5, 40, (2, 9))
    padding = torch.ones_like(ids)
    padding[0, :3] = 1 - int(has_padding)
    expected = model(ids, attention_mask=padding).last_hidden_state
    hw.fuse_attention(model, verbose=False)
    masks = []

    def record(layer: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
        masks.append(mask)
        return fused_attention(layer, q, k, v, mask, **options)

    monkeypatch.setattr(xlnet, "fused_attention", record)
    for _ in range(2):
        torch.testing.assert_close(model(ids, attention_mask=padding).last_hidden_state, expected, **TOLERANCE)
    assert len(masks) == 2 * len(model.layer)
    assert len({id(mask) for mask in masks[: len(model.layer)]}) == 1
    assert all((mask is not None) == has_padding for mask in masks)


def test_masks_that_change_in_place_are_read_again() -> None:
    hidden_h, hidden_g = torch.zeros(2, 3, 3, 1, 1)
    for key in range(3):
        hidden_h[:, key], hidden_g[:, key] = 1, 1
        masks = xlnet.stream_masks(hidden_h, hidden_g)
        for mask, hidden in zip(masks, (hidden_h, hidden_g), strict=True):
            torch.testing.assert_close(mask.visible, hidden.permute(2, 3, 0, 1) == 0)


@pytest.mark.parametrize("name", ["all-targets", "few-targets"])
def test_guides_read_the_first_stream_only(name: str) -> None:
    model = build_xlnet().train()
    hw.fuse_attention(model, verbose=False)
    observed = []
    capture_attention(model, BATCHES[name], lambda _, rows: observed.append(rows))
    assert len(observed) == len(model.layer)
    with hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]) as guided:
        output = model(**BATCHES[name]).last_hidden_state
        assert len(guided._layers) == len(model.layer)
        (output.sum() + guided.loss()).backward()
    torch.testing.assert_close(output, model(**BATCHES[name]).last_hidden_state, **TOLERANCE)


def test_guides_refuse_memories() -> None:
    model = build_xlnet().train()
    hw.fuse_attention(model, verbose=False)
    with (
        hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]),
        pytest.raises(UnsupportedAttentionError, match="states of an earlier text"),
    ):
        model(**BATCHES["memories"])
    with pytest.raises(UserError, match="cannot be inspected"):
        capture_attention(model, BATCHES["memories"], lambda *_: None)
