"""Calls with one query: the Triton kernels that divide the keys, against float64.

The error may be at most twice that of the same computation in the same precision, as in test_triton.py.
Legend: B batch, H heads, M keys.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from headwise import Alibi, DistanceAware, Plain, RelativePositions, Scheme, TransformerXL, attend
from headwise.attention.triton_backend import cached_calls, decoding, passes, plan, problem
from headwise.attention.triton_backend.layouts import to_meta
from tests.attention.triton_cases import DEVICE, DTYPES, GPU, HEADS, SCHEMES, WIDTH, reference_attention
from tests.short_form import choose_size, keep_short

triton = pytest.importorskip("triton")
BLOCK = 16  # keys of a block in half precision, twice as many as in float32


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several blocks and splits with few keys. A GPU has as many as it would have."""
    plan.clear_plans()
    cached_calls.clear_calls()
    if not GPU:
        monkeypatch.setattr(decoding, "BLOCK_BYTES", BLOCK * WIDTH * 2)
    yield
    plan.clear_plans()
    cached_calls.clear_calls()


def make_inputs(m: int, *, batch: int = 2, key_heads: int = HEADS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    sizes = ((HEADS, 1), (key_heads, m), (key_heads, m))
    return [torch.randn(batch, heads, length, WIDTH, device=DEVICE).mul(0.7).to(dtype) for heads, length in sizes]


def decode(*inputs: Tensor, **options: Any) -> Any:
    """Compute attention without gradients. Fail if the ordinary kernels compute it."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    with torch.no_grad(), mock.patch.object(passes, "run_forward", side_effect=AssertionError):
        result = attend(*inputs, backend="triton", **options)
    torch.use_deterministic_algorithms(False)
    return result


def random_case(seed: str) -> dict[str, Any]:
    """Return a random call. A seed gives the same call in each run, whose kernels Triton then has in its cache."""
    rng = random.Random(seed)
    torch.manual_seed(rng.getrandbits(31))

    def has_option() -> bool:
        return rng.random() < 0.5

    def broadcast_shape() -> list[int]:
        return [rng.choice([1, size]) for size in (batch, HEADS, 1, m)]

    batch, key_heads = rng.randint(1, 2), rng.randint(1, HEADS)
    max_keys = 20 * BLOCK if GPU else choose_size(short=4, long=6) * BLOCK
    m = rng.choice([1, BLOCK, *(rng.randint(1, max_keys) for _ in range(4))])
    options: dict[str, Any] = {"offset": rng.choice([0, m - 1, rng.randint(0, m + 5)])}
    j, position = torch.arange(m, device=DEVICE), options["offset"]
    mask = torch.ones(batch, HEADS, 1, m, dtype=torch.bool, device=DEVICE)
    if has_option():
        options["causal"] = True
        mask &= j <= position
    elif has_option():
        left, right = options["window"] = rng.randint(-1, 2 * BLOCK), rng.randint(-1, 5)
        mask &= ((j >= position - left) | (left < 0)) & ((j <= position + right) | (right < 0))
    if has_option():
        options["softcap"] = 1.2
    if has_option():
        options["sinks"] = torch.randn(HEADS, device=DEVICE)
    if has_option():
        options["key_padding"] = torch.rand(batch, m, device=DEVICE) < rng.choice([0.0, 0.1, 0.8])
        mask &= options["key_padding"][:, None, None]
    if has_option():
        options["query_padding"] = torch.rand(batch, 1, device=DEVICE) < 0.6
        mask &= options["query_padding"][:, None, None]
    if has_option():
        options["mask"] = torch.rand(broadcast_shape(), device=DEVICE) > 0.3
        mask &= options["mask"]
    if has_option():
        options["position_bias"] = torch.randn(broadcast_shape(), device=DEVICE)
    inputs = make_inputs(m, batch=batch, key_heads=key_heads, dtype=rng.choice(DTYPES))
    if has_option():  # as a model's projections return them
        inputs = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    return {"inputs": inputs, "options": options, "mask": mask, "multiprocessors": rng.randint(1, 12)}


@pytest.mark.parametrize("number", range(choose_size(short=3, long=12)))
@pytest.mark.parametrize("name", SCHEMES)
def test_error_is_within_tolerance(name: str, number: int) -> None:
    case = random_case(f"{name} {number}")
    inputs, options, mask, dtype = case["inputs"], case["options"], case["mask"], case["inputs"][0].dtype
    formula_options: dict[str, Any] = {x: options[x] for x in ("offset", "softcap") if x in options}
    if "query_padding" in options:
        formula_options["is_real_query"] = options["query_padding"][:, None, None].expand(-1, HEADS, -1, -1)

    def compute(precision: torch.dtype) -> dict[str, Tensor]:
        scheme = SCHEMES[name].to(DEVICE, torch.float64 if precision == torch.float64 else torch.float32)
        bias, sinks = (None if options.get(x) is None else options[x].to(precision) for x in ("position_bias", "sinks"))
        with torch.no_grad():
            return reference_attention(scheme, mask, bias, sinks, *(x.to(precision) for x in inputs), **formula_options)

    exact, same_precision = compute(torch.float64), compute(dtype)
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    cached_calls.clear_calls()  # of other numbers of multiprocessors
    with mock.patch.object(decoding, "num_multiprocessors", return_value=case["multiprocessors"]):
        result = decode(*inputs, scheme=scheme, return_lse=True, **options)
        assert torch.equal(decode(*inputs, scheme=scheme, **options), result.output)
    for x, baseline, expected in (
        (result.output, same_precision["output"], exact["output"]),
        (result.lse, same_precision["lse"], exact["lse"]),
    ):
        is_finite = expected.isfinite()
        assert torch.equal(x[~is_finite].double(), expected[~is_finite])
        if not is_finite.any():
            continue
        error = (x.double() - expected)[is_finite].abs().max()
        baseline_error = (baseline.double() - expected)[is_finite].abs().max()
        floor = 8 * torch.finfo(dtype).eps * expected[is_finite].abs().max()
        assert error <= 2 * baseline_error + floor


@pytest.mark.parametrize("has_sinks", [False, True])
def test_splits_and_rows_without_keys(has_sinks: bool) -> None:
    inputs = make_inputs(7 * BLOCK)
    lengths = torch.tensor([3, 0], device=DEVICE)  # the keys of all splits but one are masked, or of all of them
    sinks = torch.randn(HEADS, device=DEVICE) if has_sinks else None
    options: dict[str, Any] = {"scheme": Plain(), "key_padding": lengths, "sinks": sinks, "return_lse": True}
    with mock.patch.object(decoding, "divide_keys", return_value=(7, 1)):
        result = decode(*inputs, **options)
    expected = attend(*inputs, backend="reference", **options)
    torch.testing.assert_close(result.output, expected.output)
    torch.testing.assert_close(result.lse, expected.lse)
    assert not result.output[1].any()


def decoding_plan(m: int, *, has_mask: bool = False) -> plan.Plan:
    q, k, v = make_inputs(m)
    tensors: dict[str, Any] = {"q_ptr": q, "k_ptr": k, "v_ptr": v}
    if has_mask:
        tensors["mask_ptr"] = torch.ones(2, 1, 1, m, dtype=torch.bool, device=DEVICE)
        tensors["bias_ptr"] = torch.randn(1, HEADS, 1, m, device=DEVICE)
        tensors["w_ptr"] = tensors["sharpness_ptr"] = torch.randn(HEADS, device=DEVICE)
    arguments = [tensors.get(name) for name in problem.TENSOR_PARAMS]
    scalars = (0.1, 0.0, m - 1, True, -1, -1, False, 0, False, 0.0, False, False)
    return plan.Plan(*[None if x is None else to_meta(x) for x in arguments], *scalars, device=torch.device("cpu"))


def test_splits_cover_all_visible_keys() -> None:
    rng = random.Random(0)
    for _ in range(choose_size(short=100, long=1000)):
        m, multiprocessors, offset = rng.randint(1, 200), rng.randint(1, 12), rng.randint(0, 250)
        left, right = rng.randint(-1, 90), rng.randint(-1, 90)
        case = f"m {m}, {multiprocessors} multiprocessors, offset {offset}, window {left}, {right}"
        call = decoding_plan(m)
        call.q_offset, call.causal = offset, rng.random() < 0.3
        call.window_left, call.window_right = (problem.NO_LIMIT if x < 0 else x for x in (left, right))
        with mock.patch.object(decoding, "num_multiprocessors", return_value=multiprocessors):
            splits, blocks_per_split = decoding.divide_keys(call, 1)
        size = decoding.decode_tile(call).block_m
        visible = [
            j
            for j in range(m)
            if offset - call.window_left <= j <= offset + call.window_right and (j <= offset or not call.causal)
        ]
        blocks = len({j // size for j in visible})
        assert splits * blocks_per_split >= blocks, case
        assert (splits - 1) * blocks_per_split < max(blocks, 1), case  # none is empty
        assert splits == 1 or splits * 2 * HEADS <= multiprocessors * decoding.PROGRAMS_PER_MULTIPROCESSOR, case


def test_keys_outside_the_window_are_not_read() -> None:
    q, k, v = make_inputs(9 * BLOCK)
    expected = decode(q, k, v, scheme=Plain(), window=(2, 0))
    size = decoding.decode_tile(decoding_plan(9 * BLOCK)).block_m
    k[:, :, : 8 * BLOCK // size * size - size] = torch.nan
    v[:, :, : 8 * BLOCK // size * size - size] = torch.nan
    assert torch.equal(decode(q, k, v, scheme=Plain(), window=(2, 0)), expected)


def test_kernels_are_not_compiled_for_each_number_of_keys() -> None:
    from headwise.attention.triton_backend.decode_kernels import NOT_SPECIALIZED

    for has_mask in (False, True):
        plans = [decoding_plan(m, has_mask=has_mask) for m in (5, 33, 64, 160, 171)]
        first, *others = (decoding.decode_launches(call, None, None, 1, 2 + call.m // 16, 1) for call in plans)
        for name, launch in ((name, launch) for launches in others for name, launch in launches.items()):
            for argument, value in launch.arguments.items():
                expected = first[name].arguments[argument]
                is_same = value == expected or argument in NOT_SPECIALIZED
                assert is_same or value % 16 == expected % 16 == 0, argument


@pytest.mark.short_form("values")
@pytest.mark.parametrize("options", [{}, {"causal": True, "softcap": 2.0}, {"window": (20, 0)}], ids=str)
@pytest.mark.parametrize(
    "name", keep_short(SCHEMES, "plain", "distance-aware", "relative", "transformer-xl", "t5-bias")
)
def test_repeated_calls_give_the_same_bits(name: str, options: dict[str, Any]) -> None:
    scheme, inputs = SCHEMES[name].to(DEVICE, torch.float32), make_inputs(3 * BLOCK + 5)
    first = decode(*inputs, scheme=scheme, **options)
    num_calls = cached_calls.num_calls()
    assert num_calls >= 1
    with mock.patch.object(cached_calls, "attend_first", side_effect=AssertionError):
        assert torch.equal(decode(*inputs, scheme=scheme, **options), first)
    with mock.patch.object(cached_calls, "call_key", return_value=None):
        assert torch.equal(decode(*inputs, scheme=scheme, **options), first)
    assert cached_calls.num_calls() == num_calls


@pytest.mark.parametrize("name", keep_short(("distance-aware", "relative", "transformer-xl"), "relative"))
def test_gradients_are_computed_after_a_cached_call(name: str) -> None:
    scheme, inputs = SCHEMES[name].to(DEVICE, torch.float32), make_inputs(BLOCK + 3)
    for _ in range(2):
        output = decode(*inputs, scheme=scheme)
        assert not output.requires_grad
    leaves = [x.clone().requires_grad_() for x in inputs]
    grads = []
    for backend in ("triton", "reference"):
        output = attend(*leaves, scheme=scheme, backend=backend)
        grads.append(torch.autograd.grad(output.square().sum(), [*leaves, *scheme.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-4, rtol=1e-3)


def test_a_growing_cache_does_not_evict_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_calls, "MAX_DECODING_KEYS", 2)
    x = torch.randn(1, HEADS, 5, WIDTH, device=DEVICE)
    with torch.no_grad():
        attend(x, x, x, scheme=Plain(), backend="triton")
    num_calls = cached_calls.num_calls()
    for m in range(3, 8):
        decode(*make_inputs(m), scheme=Plain(), causal=True)
    assert cached_calls.num_calls() == num_calls + 2
    with mock.patch.object(cached_calls, "attend_first", side_effect=AssertionError), torch.no_grad():
        attend(x, x, x, scheme=Plain(), backend="triton")


@pytest.mark.short_form("values")
@pytest.mark.parametrize(("group", "rows"), [(1, 1), (3, 16), (20, 32)])
@pytest.mark.parametrize("name", ["distance-aware", "relative", "relative-per-head", "alibi"])
def test_query_heads_that_share_keys(name: str, group: int, rows: int) -> None:
    heads, m = 2 * group, 2 * BLOCK + 7
    make: dict[str, Callable[[], Scheme]] = {
        "distance-aware": lambda: DistanceAware(heads, w_std=0.1, v_std=1.0),
        "relative": lambda: RelativePositions(heads, WIDTH, k=3),
        "relative-per-head": lambda: RelativePositions(heads, WIDTH, k=3, per_head=True),
        "alibi": lambda: Alibi(heads),
    }
    scheme, has_own_tables = make[name]().to(DEVICE), name == "relative-per-head"
    inputs = [torch.randn(2, count, n, WIDTH, device=DEVICE).half() for count, n in ((heads, 1), (2, m), (2, m))]
    sinks, mask = torch.randn(heads, device=DEVICE), torch.rand(2, heads, 1, m, device=DEVICE) > 0.3
    options: dict[str, Any] = {"scheme": scheme, "causal": True, "sinks": sinks, "mask": mask, "return_lse": True}
    with mock.patch.object(decoding, "divide_keys", wraps=decoding.divide_keys) as divide_keys:
        result = decode(*inputs, **options)
    assert divide_keys.call_args.args[1] == (1 if has_own_tables else rows)
    expected = attend(*(x.float() for x in inputs), backend="reference", **options)
    torch.testing.assert_close(result.output.float(), expected.output, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(result.lse, expected.lse, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("layout", ["keys", "padding"])
def test_unusual_layouts_give_the_same_values(layout: str) -> None:
    q, k, v = make_inputs(2 * BLOCK + 1)
    padding = torch.rand(2 * BLOCK + 1, 2, device=DEVICE).T > 0.3
    expected = attend(q, k, v, scheme=Plain(), key_padding=padding, backend="reference")
    if layout == "keys":
        k, padding = k.mT.contiguous().mT, padding.contiguous()
    with torch.no_grad():
        output = attend(q, k, v, scheme=Plain(), key_padding=padding, backend="triton")
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(
    "scheme",
    [DistanceAware(HEADS), RelativePositions(HEADS, WIDTH, k=2), TransformerXL(HEADS, WIDTH)],
    ids=lambda scheme: type(scheme).__name__,
)
def test_decoding_gives_the_rows_of_causal_attention(scheme: Any) -> None:
    scheme, n = scheme.to(DEVICE), 20
    q, k, v = (torch.randn(1, HEADS, n, WIDTH, device=DEVICE) for _ in range(3))
    expected = attend(q, k, v, scheme=scheme, causal=True, backend="reference")
    for i in range(0, n, 6):
        row = decode(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], scheme=scheme, causal=True)
        torch.testing.assert_close(row, expected[:, :, i : i + 1], atol=1e-5 if not GPU else 1e-2, rtol=1e-3)
