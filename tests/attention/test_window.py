"""Windows, dense masks and causal attention with more keys than queries: which pairs and which tiles are computed.

Tiles that are visited by mistake would put NaN into the results: NaN times a weight of 0 is NaN.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, EncoderLayer, MultiheadAttention, Plain, Scheme, attend, explain
from headwise.attention.blockwise import block
from tests.attention.cases import SCHEMES, make_scheme
from tests.short_form import keep_short

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
HEADS, WIDTH, TILE = 2, 32, 32  # TILE is that of the kernels in float32


def backends() -> list[Any]:
    pytest.importorskip("triton")
    return ["blockwise", "triton"]


def run(scheme: Scheme, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """Return output, received attention and gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output, received, *_ = attend(*leaves, scheme=scheme, return_received=True, **options)
    assert received is not None
    leaves += [p for p in scheme.parameters() if p.requires_grad]
    total = output.nan_to_num().square().sum() + received.nan_to_num().square().sum()
    grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [output, received, *grads]


def test_narrow_windows_store_no_whole_maps() -> None:
    def backend(n: int, window: tuple[int, int], **options: Any) -> str:
        x = torch.zeros(1, 1, n, 2)
        return explain(x, x, x, scheme=DistanceAware(1), window=window, **options).backend

    assert [backend(n, (64, 0)) for n in (256, 512, 1024)] == ["reference", "blockwise", "blockwise"]
    assert backend(1024, (400, 400)) == "reference", "most pairs are inside"
    assert backend(1024, (64, -1)) == "reference", "there is no limit on one side"
    assert backend(1024, (64, 0), return_weights=True) == "reference", "whole maps are asked for"


@pytest.mark.parametrize("name", keep_short(SCHEMES, "distance-aware", "transformer-xl"))
def test_keys_outside_the_window_are_never_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last 48 queries of 192 tokens see at most 8 keys before the first of them."""
    monkeypatch.setattr(block, "MIN_BLOCK_ROWS", 8)
    monkeypatch.setattr(block, "BLOCK_PAIRS", 2**10)
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32).to(DEVICE)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (48, 192, 192))
    first_visited = (192 - 48 - 8) // TILE * TILE
    expected = run(scheme, [q, k, v], window=(8, 2), backend="reference")
    k[:, :, :first_visited] = v[:, :, :first_visited] = torch.nan
    for backend in backends():
        results = run(scheme, [q, k, v], window=(8, 2), backend=backend)
        torch.testing.assert_close(results, expected, atol=4e-4, rtol=2e-3)


@pytest.mark.parametrize("name", ["transformer-xl", "disentangled"])
@pytest.mark.parametrize("variant", keep_short(["window", "causal", "mask", "offset"], "offset"))
def test_chunks_with_a_narrow_dz(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of scores are stored for chunks of queries, with columns only for the window."""
    pytest.importorskip("triton")
    monkeypatch.setattr("headwise.attention.triton_backend.transformer_xl.MAX_CHUNK_PAIRS", 1)  # several chunks
    n, m = (700, 750) if variant == "offset" else (700, 700)
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32).to(DEVICE)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (n, m, m))
    options: dict[str, Any] = {"window": (70, 3), "causal": variant == "causal"}
    if variant == "mask":
        options["mask"] = torch.rand(1, 1, n, m, device=DEVICE) < 0.5
        options["mask"][:, :, 100:400, 100:400] = False
    expected = run(scheme, [q, k, v], backend="reference", **options)
    torch.testing.assert_close(run(scheme, [q, k, v], backend="triton", **options), expected, atol=4e-4, rtol=2e-3)


@pytest.mark.parametrize("name", keep_short(SCHEMES, "plain", "t5-bias"))
def test_queries_outside_the_window_are_never_read(name: str) -> None:
    """Queries beyond the window of the last of 64 keys have no key and get zeros."""
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32).to(DEVICE)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (208, 64, 64))
    num_visited = -(-(64 + 8) // TILE) * TILE
    options: dict[str, Any] = {"window": (8, 2), "offset": 0}
    expected = run(scheme, [q, k, v], backend="reference", **options)
    q[:, :, num_visited:] = torch.nan
    if name == "rpr":  # the products of all queries with the clipped table are computed before the kernels
        return
    results = run(scheme, [q, k, v], backend="triton", **options)
    assert not results[0][:, :, num_visited:].any()
    torch.testing.assert_close(results[1], expected[1], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(results[3:5], expected[3:5], atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("name", keep_short(SCHEMES, "distance-aware", "transformer-xl", "disentangled"))
def test_masked_tiles_are_never_read(name: str) -> None:
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32).to(DEVICE)
    n = 4 * TILE
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, device=DEVICE) for _ in range(3))
    tokens = torch.arange(n, device=DEVICE)
    mask = torch.rand(2, HEADS, n, n, device=DEVICE) > 0.3
    mask[1, :, TILE:, : 2 * TILE] = False
    mask[:, :, :, TILE : 2 * TILE] = False  # no query sees these keys
    mask[:, 1] &= tokens // TILE != 2  # nor these, in the second head
    expected = run(scheme, [q, k, v], mask=mask, backend="reference")
    k[:, :, TILE : 2 * TILE] = v[:, :, TILE : 2 * TILE] = torch.nan
    k[:, 1, 2 * TILE : 3 * TILE] = v[:, 1, 2 * TILE : 3 * TILE] = torch.nan
    results = run(scheme, [q, k, v], mask=mask, backend="triton")
    torch.testing.assert_close(results, expected, atol=2e-4, rtol=2e-3)


@pytest.mark.parametrize("name", ["plain", "transformer-xl"])
def test_tiles_of_a_mask_are_listed_once_until_it_changes(name: str) -> None:
    """The layers of a model have the same mask, and a mask that was changed in place is another one."""
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32).to(DEVICE)
    n = 4 * TILE
    inputs = [torch.randn(2, HEADS, n, WIDTH, device=DEVICE, requires_grad=True) for _ in range(3)]
    leaves = [*inputs, *scheme.parameters()]
    mask = torch.rand(2, 1, n, n, device=DEVICE) > 0.3
    mask[0, :, :, TILE : 2 * TILE] = False

    def compute(backend: Any) -> list[Tensor]:
        output = attend(*inputs, scheme=scheme, mask=mask, backend=backend)
        return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]

    def num_listings() -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            results = compute("triton")
        torch.testing.assert_close(results, compute("reference"), atol=2e-4, rtol=2e-3)
        return sum(event.count for event in profiler.key_averages() if event.key == "aten::scatter_")

    assert num_listings() > 0
    assert num_listings() == 0
    mask[0, :, :, TILE : 2 * TILE] = True
    mask[1, :, 2 * TILE :, TILE:] = False
    assert num_listings() > 0
    assert num_listings() == 0


def test_blockwise_reads_only_keys_between_the_first_and_the_last_unmasked_one() -> None:
    q, k, v = (torch.randn(1, HEADS, 50, WIDTH) for _ in range(3))
    mask = torch.zeros(50, 50, dtype=torch.bool)
    mask[:, 20:30] = True
    expected = run(Plain(), [q, k, v], mask=mask, backend="reference")
    k[:, :, :20] = v[:, :, 30:] = torch.nan
    torch.testing.assert_close(run(Plain(), [q, k, v], mask=mask, backend="blockwise"), expected)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
def test_the_last_causal_query_sees_all_keys(name: str, backend: Any) -> None:
    """By default, queries have the last positions, as in flash-attention and when decoding with a cache."""
    scheme = make_scheme(name, HEADS, WIDTH, dtype=torch.float32)
    q, k, v = (torch.randn(2, HEADS, 9, WIDTH) for _ in range(3))
    whole = attend(q, k, v, scheme=scheme, causal=True, backend=backend)
    for num_queries in (1, 4):
        last = attend(q[:, :, -num_queries:], k, v, scheme=scheme, causal=True, backend=backend)
        torch.testing.assert_close(last, whole[:, :, -num_queries:], atol=1e-5, rtol=1e-4)


def test_more_causal_queries_than_keys_need_an_offset() -> None:
    q, k = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"more queries \(5\) than keys \(3\) needs an explicit offset"):
        attend(q, k, k, scheme=Plain(), causal=True)
    output = attend(q, k, k, scheme=Plain(), causal=True, offset=0)
    torch.testing.assert_close(output[:, :, 0], k[:, :, 0])


@pytest.mark.parametrize("window", [3, (1,), (1, -2), (1.0, 2), (True, 1)])
def test_invalid_windows(window: Any) -> None:
    x = torch.randn(1, 1, 5, 4)
    with pytest.raises(ValueError, match=r"window must be \(left, right\)"):
        attend(x, x, x, scheme=Plain(), window=window)


def test_layers_take_a_window() -> None:
    x = torch.randn(2, 7, 8)
    positions = torch.arange(7)
    is_outside = (positions[:, None] - positions).abs() > 1
    attention = MultiheadAttention(8, 2)
    windowed = attention(x, x, x, window=(1, 1))[0]
    torch.testing.assert_close(windowed, attention(x, x, x, attn_mask=is_outside)[0])
    layer = EncoderLayer(8, 2, dropout=0.0)
    torch.testing.assert_close(layer(x, window=(1, 1)), layer(x, mask=~is_outside))
