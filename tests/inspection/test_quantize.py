"""Tests of quantized maps: their error is within the documented bound."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.inspection import quantize as module
from headwise.inspection.measures import (
    distance_bin_names,
    num_distance_bins,
    row_blocks,
    sum_by_distance,
    uniform_shares,
)
from headwise.inspection.quantize import NUM_TOP_KEYS, quantize_layer
from headwise.integrations import AttentionRows


def to_rows(maps: Tensor, lengths: list[int], scheme: hw.attention.Scheme | None = None) -> AttentionRows:
    real = torch.arange(maps.shape[2]) < torch.tensor(lengths)[:, None]
    return AttentionRows(maps.shape[1], real, scheme, lambda start, stop: maps[:, :, start:stop])


def random_maps(sequences: int, heads: int, length: int) -> Tensor:
    return (3 * torch.randn(sequences, heads, length, length)).softmax(dim=-1)


def test_weights_of_short_texts_are_within_the_error_bound() -> None:
    maps = random_maps(1, 3, 20)
    layer = quantize_layer(to_rows(maps, [20]), [20])
    assert layer.cells.shape == (3, 20, 20)
    assert layer.top_keys is None
    for head in range(3):
        expected = maps[0, head].numpy()
        bound = np.sqrt(expected * expected.max()) / 255 + 1e-5
        assert (np.abs(layer.dequantize(head) - expected) <= bound).all()


@given(st.integers(1, 40), st.integers(2, 9), st.integers(1, 50))
def test_long_texts_have_groups_and_top_keys(length: int, max_groups: int, block: int) -> None:
    torch.manual_seed(length)
    maps, heads = random_maps(1, 2, length), 2
    with pytest.MonkeyPatch.context() as patch:
        blocks = [(start, min(start + block, length)) for start in range(0, length, block)]
        patch.setattr(module, "MAX_GROUPS", max_groups)
        patch.setattr(module, "row_blocks", lambda *_, **__: blocks)
        layer = quantize_layer(to_rows(maps, [length]), [length])
    size = -(-length // max_groups)
    num_groups = -(-length // size)
    for head in range(heads):
        expected = np.zeros((num_groups, num_groups))
        for i in range(num_groups):
            queries = range(i * size, min((i + 1) * size, length))
            for j in range(num_groups):
                keys = range(j * size, min((j + 1) * size, length))
                expected[i, j] = sum(float(maps[0, head, q, k]) for q in queries for k in keys) / len(queries)
        np.testing.assert_allclose(layer.dequantize(head), expected, atol=expected.max() / 255 + 1e-6)
    if size > 1:
        assert layer.top_keys is not None
        assert layer.top_weights is not None
        assert layer.top_weight_max is not None
        top = maps[0].topk(min(NUM_TOP_KEYS, length), dim=-1).values
        num_keys = top.shape[-1]
        weights = np.square(layer.top_weights / 255.0) * layer.top_weight_max[:, None, None]
        np.testing.assert_allclose(weights[..., :num_keys], top, atol=1 / 255 + 1e-6)
        top_keys = layer.top_keys[..., :num_keys].astype(np.int64)
        np.testing.assert_allclose(np.take_along_axis(maps[0].numpy(), top_keys, axis=-1), top)


def test_sequences_are_placed_along_the_diagonal() -> None:
    maps = random_maps(2, 1, 4)
    maps[1, :, :, 3] = 0.0
    layer = quantize_layer(to_rows(maps, [4, 3]), [4, 3])
    expected = np.zeros((7, 7))
    expected[:4, :4], expected[4:, 4:] = maps[0, 0], maps[1, 0, :3, :3]
    np.testing.assert_allclose(layer.dequantize(0), expected, atol=0.004)


def test_distance_entropy_and_w_of_each_head() -> None:
    uniform = torch.full((1, 1, 4, 4), 0.25)
    identity = torch.eye(4)[None, None]
    scheme = hw.DistanceAware(heads=2)
    layer = quantize_layer(to_rows(torch.cat([uniform, identity], dim=1), [4], scheme), [4])
    distances = [abs(i - j) for i in range(4) for j in range(4)]
    assert layer.distance is not None
    assert layer.distance_shares is not None
    np.testing.assert_allclose(layer.distance, [sum(distances) / 16, 0.0], atol=1e-6)
    assert distance_bin_names(3) == ["before_3-4", "before_2", "before_1", "self", "after_1", "after_2", "after_3-4"]
    np.testing.assert_allclose(layer.distance_shares[0], np.array([1, 2, 3, 4, 3, 2, 1]) / 16, atol=1e-6)
    np.testing.assert_allclose(layer.distance_shares[1], [0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_allclose(layer.entropy, [2.0, 0.0], atol=1e-6)
    assert layer.w is not None
    np.testing.assert_allclose(layer.w, scheme.w.detach())


def test_blocks_of_rows_are_limited() -> None:
    for start, stop in row_blocks(4096, 1, 12):
        assert (stop - start) * 12 * 4096 <= 2**20
    for start, stop in row_blocks(100, 1, 12, num_keys=4096):
        assert (stop - start) * 12 * 4096 <= 2**20
    assert row_blocks(4096, 1, 12)[-1][1] == 4096


@given(st.integers(1, 40), st.integers(1, 40))
def test_sums_by_distance_equal_a_loop(length: int, block: int) -> None:
    torch.manual_seed(length)
    maps, num_bins = random_maps(2, 3, length), num_distance_bins(length)
    expected = np.zeros((3, 2 * num_bins + 1))
    for i in range(length):
        for j in range(length):
            bins = 0 if i == j else (abs(i - j) - 1).bit_length() + 1
            expected[:, num_bins + (bins if j > i else -bins)] += maps[:, :, i, j].sum(dim=0).numpy()
    sums = sum(sum_by_distance(maps[:, :, start : start + block], start, num_bins) for start in range(0, length, block))
    np.testing.assert_allclose(sums, expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_uniform_shares_are_those_of_equal_weights(length: int, causal: bool) -> None:
    weights = torch.ones(1, 1, length, length)
    weights = weights.tril() if causal else weights
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expected = sum_by_distance(weights, 0, num_distance_bins(length))[0] / length
    np.testing.assert_allclose(uniform_shares(length, causal=causal), expected, atol=1e-6)
