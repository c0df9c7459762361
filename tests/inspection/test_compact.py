"""Maps in little room are the maps, as closely as is promised."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.inspection import quantize as module
from headwise.inspection.measures import row_blocks
from headwise.inspection.quantize import STRONGEST, compact
from headwise.integrations import AttentionRows


def rows(maps: Tensor, lengths: list[int], scheme: hw.attention.Scheme | None = None) -> AttentionRows:
    real = torch.arange(maps.shape[2]) < torch.tensor(lengths)[:, None]
    return AttentionRows(maps.shape[1], real, scheme, lambda start, stop: maps[:, :, start:stop])


def some_maps(sequences: int, heads: int, length: int) -> Tensor:
    return (3 * torch.randn(sequences, heads, length, length)).softmax(dim=-1)


def test_short_texts_keep_every_weight_to_the_promised_precision() -> None:
    maps = some_maps(1, 3, 20)
    layer = compact(rows(maps, [20]), [20])
    assert layer.cells.shape == (3, 20, 20)
    assert layer.keys is None
    for head in range(3):
        true = maps[0, head].numpy()
        within = np.sqrt(true * true.max()) / 255 + 1e-5
        assert (np.abs(layer.map(head) - true) <= within).all()


@given(st.integers(1, 40), st.integers(2, 9), st.integers(1, 50))
def test_long_texts_keep_groups_and_strongest_keys(length: int, side: int, block: int) -> None:
    torch.manual_seed(length)
    maps, heads = some_maps(1, 2, length), 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CELLS", side)
        patch.setattr(module, "row_blocks", lambda n, *_: [(at, min(at + block, n)) for at in range(0, n, block)])
        layer = compact(rows(maps, [length]), [length])
    size = -(-length // side)
    groups = -(-length // size)
    for head in range(heads):
        expected = np.zeros((groups, groups))
        for i in range(groups):
            queries = range(i * size, min((i + 1) * size, length))
            for j in range(groups):
                keys = range(j * size, min((j + 1) * size, length))
                expected[i, j] = sum(float(maps[0, head, q, k]) for q in queries for k in keys) / len(queries)
        np.testing.assert_allclose(layer.map(head), expected, atol=expected.max() / 255 + 1e-6)
    if size > 1:
        assert layer.keys is not None
        assert layer.weights is not None
        assert layer.strongest is not None
        best = maps[0].topk(min(STRONGEST, length), dim=-1)
        kept = np.square(layer.weights / 255.0) * layer.strongest[:, None, None]
        np.testing.assert_allclose(kept[..., : best.values.shape[-1]], best.values, atol=1 / 255 + 1e-6)
        at_keys = np.take_along_axis(
            maps[0].numpy(), layer.keys[..., : best.values.shape[-1]].astype(np.int64), axis=-1
        )
        np.testing.assert_allclose(at_keys, best.values)


def test_sentences_stand_along_the_diagonal() -> None:
    maps = some_maps(2, 1, 4)
    maps[1, :, :, 3] = 0.0
    layer = compact(rows(maps, [4, 3]), [4, 3])
    expected = np.zeros((7, 7))
    expected[:4, :4], expected[4:, 4:] = maps[0, 0], maps[1, 0, :3, :3]
    np.testing.assert_allclose(layer.map(0), expected, atol=0.004)


def test_distance_entropy_and_w_of_each_head() -> None:
    even = torch.full((1, 1, 4, 4), 0.25)
    itself = torch.eye(4)[None, None]
    scheme = hw.DistanceAware(heads=2)
    layer = compact(rows(torch.cat([even, itself], dim=1), [4], scheme), [4])
    distances = [abs(i - j) for i in range(4) for j in range(4)]
    np.testing.assert_allclose(layer.distance, [sum(distances) / 16, 0.0], atol=1e-6)
    np.testing.assert_allclose(layer.entropy, [2.0, 0.0], atol=1e-6)
    assert layer.w is not None
    np.testing.assert_allclose(layer.w, scheme.w.detach())


def test_never_more_than_some_rows_are_held() -> None:
    for start, stop in row_blocks(4096, 1, 12):
        assert (stop - start) * 12 * 4096 <= 2**24
    assert row_blocks(4096, 1, 12)[-1][1] == 4096
