"""The Triton kernels against float64.

The error may be at most twice that of the same computation in the same precision, three times for gradients. Without a
GPU the kernels run in Triton's interpreter, in float32 and float16 (its bfloat16 is broken).
Legend: B batch, H heads, N queries, M keys.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import Disentangled, DistanceAware, Plain, Scheme, TransformerXL, attend, explain
from tests.attention.triton_cases import (
    CASES,
    DEVICE,
    GPU,
    HEADS,
    LENGTHS,
    OPTIONS,
    SCHEMES,
    WIDTH,
    build_options,
    reference_attention,
)
from tests.fresh_python import run_fresh_python
from tests.short_form import choose_size, keep_short

pytest.importorskip("triton")
MAX_CHUNK_PAIRS = "headwise.attention.triton_backend.transformer_xl.MAX_CHUNK_PAIRS"


@pytest.mark.short_form("arguments")
@pytest.mark.parametrize(("name", "option", "dtype"), CASES, ids=str)
def test_error_is_within_tolerance(name: str, option: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAX_CHUNK_PAIRS, 1)  # several chunks of queries, as small as possible
    n, m = (20, 27) if option == "single-tile" else LENGTHS
    if GPU and name == "distance-aware":  # short enough for one loop over all keys
        n = min(n, 1000)
    if "cu_seqlens" in option:
        m = n + 40 if "cu_seqlens_k" in option else n
    if OPTIONS[option].get("returns") == ():
        factor = choose_size(short=2, long=3)
        n, m = factor * n, factor * m
    batch = 1 if "cu_seqlens" in option else 2
    scheme = SCHEMES[name].to(DEVICE)
    options, mask_BHNM, key_heads = build_options(OPTIONS[option], batch, n, m)
    inputs = [
        torch.randn(batch, heads, length, WIDTH, device=DEVICE).mul(0.7).to(dtype)
        for heads, length in ((HEADS, n), (key_heads, m), (key_heads, m))
    ]
    grad_outputs: list[Tensor] = []
    returns = options.pop("returns", ("received", "weight_norms", "lse"))
    bias_values = [options.pop("position_bias")] if "position_bias" in options else []
    has_sinks = options.pop("sinks", False)
    query_positions = {"query_positions": options.pop("query_positions")} if "query_positions" in options else {}
    bias_values += [torch.randn(HEADS, device=DEVICE)] if has_sinks else []

    def run(backend: str, precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).detach().requires_grad_() for x in inputs]
        owner = scheme.to(torch.float64 if precision == torch.float64 else torch.float32)
        biases = [x.to(precision).detach().requires_grad_() for x in bias_values]
        sinks = biases[-1] if has_sinks else None
        bias = biases[0] if len(biases) > has_sinks else None
        torch.use_deterministic_algorithms(backend == "triton", warn_only=True)  # fills new memory with NaN
        if backend == "triton":
            q, k, v = leaves
            flags: dict[str, Any] = {f"return_{name}": True for name in returns}
            more: dict[str, Any] = {"position_bias": bias, "sinks": sinks, **flags, **options}
            outputs = attend(q, k, v, scheme=owner, backend="triton", **more)
            outputs = [x for x in outputs if x is not None] if returns else (outputs,)
        else:
            names = ("offset", "scale", "softcap")
            formula_options: dict[str, Any] = {
                name: options[name] for name in names if name in options
            } | query_positions
            if "query_padding" in options:
                is_real = torch.arange(n, device=DEVICE) < options["query_padding"][:, None]
                formula_options["is_real_query"] = is_real[:, None, :, None].expand(-1, HEADS, -1, -1)
            results = reference_attention(owner, mask_BHNM, bias, sinks, *leaves, **formula_options)
            outputs = tuple(results[name] for name in ("output", *returns))
        grad_outputs[:] = grad_outputs or [torch.randn(x.shape, dtype=torch.float64, device=DEVICE) for x in outputs]
        cast_grad_outputs = [grad.to(x.dtype) for x, grad in zip(outputs, grad_outputs, strict=True)]
        grads = torch.autograd.grad(outputs, [*leaves, *biases, *owner.parameters()], cast_grad_outputs)
        torch.use_deterministic_algorithms(False)
        return [*outputs, *grads]

    exact = run("formula", torch.float64)
    same_precision = run("formula", dtype)
    kernels = run("triton", dtype)
    for index, (result, baseline, expected) in enumerate(zip(kernels, same_precision, exact, strict=True)):
        is_finite = expected.isfinite()  # lse of queries without a key is not
        assert torch.equal(result[~is_finite].double(), expected[~is_finite])
        result, baseline, expected = result[is_finite], baseline[is_finite], expected[is_finite]
        error = (result.double() - expected).abs().max()
        baseline_error = (baseline.double() - expected).abs().max()
        # The gradient of a head's parameter is a sum over all pairs, and that of a sink over all queries.
        first_parameter = 4 + len(returns) + len(bias_values)
        num_terms = 2 * n * m if index >= first_parameter else 1
        if has_sinks and index == first_parameter - 1:
            num_terms = batch * n
        floor = 8 * num_terms**0.5 * torch.finfo(dtype).eps * expected.abs().max()
        factor = 2 if index <= len(returns) else 3
        assert error <= factor * baseline_error + floor, f"result {index}: {error:.1e} against {baseline_error:.1e}"


@pytest.mark.parametrize("name", keep_short(("plain", "distance-aware", "transformer-xl"), "distance-aware"))
def test_backward_uses_the_dropout_mask_of_forward(name: str) -> None:
    n = 32
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    q, k = (torch.randn(1, HEADS, n, WIDTH, device=DEVICE, requires_grad=True) for _ in range(2))
    v = torch.eye(n, device=DEVICE).expand(1, HEADS, n, n).clone().requires_grad_()  # the output is the weights

    flags: dict[str, Any] = {"return_received": True, "return_weight_norms": True, "return_lse": True}
    d_rows = [torch.randn(1, HEADS, n, device=DEVICE) for _ in flags]  # gradients of results before dropout

    def run(dropout: float) -> list[Tensor]:
        torch.manual_seed(3)
        return list(attend(q, k, v, scheme=scheme, dropout=dropout, backend="triton", **flags)[:4])

    (weights, *rows), (dropped_weights, *rows_with_dropout) = run(0.0), run(0.4)
    torch.testing.assert_close(rows_with_dropout, rows)
    is_nonzero = dropped_weights != 0
    assert 0.3 < 1 - is_nonzero.float().mean() < 0.5
    torch.testing.assert_close(dropped_weights, torch.where(is_nonzero, weights / 0.6, 0.0))
    d_output = torch.randn_like(dropped_weights)
    dq, dk, dv = torch.autograd.grad(run(0.4), (q, k, v), [d_output, *d_rows])
    torch.testing.assert_close(dv, dropped_weights.mT @ d_output)
    expected = torch.autograd.grad(run(0.0), (q, k), [torch.where(is_nonzero, d_output / 0.6, 0.0), *d_rows])
    torch.testing.assert_close((dq, dk), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("num_keys", "value_width"), [(0, WIDTH), (6, 0)])
def test_no_keys_and_empty_values_match_the_reference(num_keys: int, value_width: int) -> None:
    q = torch.randn(1, HEADS, 5, WIDTH, device=DEVICE, requires_grad=True)
    k = torch.randn(1, HEADS, num_keys, WIDTH, device=DEVICE)
    v = torch.randn(1, HEADS, num_keys, value_width, device=DEVICE)
    flags: dict[str, Any] = {"return_received": True, "return_weight_norms": True, "return_lse": True}
    results = []
    for backend in ("reference", "triton"):
        outputs = attend(q, k, v, scheme=Plain(), backend=backend, **flags)[:4]
        results.append([*outputs, *torch.autograd.grad(sum(x.sum() for x in outputs), q)])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    "name",
    keep_short(("distance-aware-near", "relative", "t5-bias", "transformer-xl", "disentangled"), "distance-aware-near"),
)
def test_results_are_deterministic(name: str) -> None:
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    n = 140 if GPU else 40  # several tiles
    inputs = [torch.randn(2, HEADS, n, WIDTH, device=DEVICE, requires_grad=True) for _ in range(3)]
    runs = []
    for _ in range(2):
        output = attend(*inputs, scheme=scheme, backend="triton")
        runs.append([output, *torch.autograd.grad(output.square().sum(), [*inputs, *scheme.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.long  # opcheck traces the operators, too
def test_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)

    def function(x: Tensor) -> Any:
        return attend(x, x, x, scheme=scheme, return_received=True, backend="triton")[:2]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for result, expected in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(result, expected)
    result_grad, expected_grad = (torch.autograd.grad(f(x)[0].square().sum(), x) for f in (compiled, function))
    torch.testing.assert_close(result_grad, expected_grad)


@pytest.mark.parametrize(
    "kind", keep_short(("distance", "clipped-table", "dense-table", "position-product"), "distance")
)
def test_operators_pass_opcheck(kind: str) -> None:
    from headwise.attention.triton_backend.operator import operators
    from headwise.attention.triton_backend.problem import DIFFERENTIABLE, TENSOR_PARAMS
    from headwise.attention.triton_backend.transformer_xl import pad_table

    q, k, v = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (20, 30, 30))
    w, sharpness = torch.randn(2, HEADS, device=DEVICE)
    bias = torch.randn(1, 1, 20, 30, device=DEVICE)
    table = pad_table(torch.randn(HEADS, 49, WIDTH, device=DEVICE))
    cases: dict[str, tuple[dict[str, Tensor], tuple[Any, ...]]] = {
        "distance": (
            {"w": w, "sharpness": sharpness},
            (0.2, 0.0, 3, True, -1, -1, True, 0, False, 0.0, True, True),
        ),
        "clipped-table": (
            {
                "relative_scores": torch.randn(1, HEADS, 20, 8, device=DEVICE),  # 5 columns and padding
                "relative_bias": torch.randn(HEADS, 5, device=DEVICE),
                "bias": bias,
                "sinks": w,
            },
            (0.2, 1.5, 3, False, 4, 2, False, 2, True, 0.0, False, False),
        ),
        "dense-table": (
            {
                "bias_uv": torch.randn(2, HEADS, WIDTH, device=DEVICE),
                "dense_table": table,
                "query_table": table,
                "bias": bias,
            },
            (0.2, 0.0, 3, True, -1, -1, False, 0, False, 0.0, True, True),
        ),
        "position-product": (
            {
                "position_q": torch.randn(1, HEADS, 20, 12, device=DEVICE),
                "position_k": torch.randn(1, 1, 30, 12, device=DEVICE),
                "bias": bias,
            },
            (0.2, 0.0, 3, True, -1, -1, False, 0, False, 0.0, True, True),
        ),
    }
    tensors, scalars = cases[kind]
    tensors |= {"q": q, "k": k, "v": v}
    arguments = (*[tensors.get(name.removesuffix("_ptr")) for name in TENSOR_PARAMS], *scalars)
    torch.library.opcheck(operators.forward, arguments)
    outputs = operators.forward(*arguments)
    needs_grad = [True] * len(DIFFERENTIABLE)
    torch.library.opcheck(operators.backward, (*arguments, needs_grad, *(outputs[i] for i in (0, 1, 3, 4)), *outputs))


def test_unsupported_calls_are_explained_and_auto_uses_another_backend() -> None:
    x = torch.randn(1, HEADS, 8, WIDTH, device=DEVICE)
    cases: list[tuple[Scheme, dict[str, Any], str]] = [
        (DistanceAware(HEADS, mapping="clip"), {}, "learnable-sigmoid"),
        (DistanceAware(HEADS, adjust="late-add"), {}, "early-multiply"),
        (Plain(), {"return_weights": True}, "do not return attention weights"),
    ]
    for scheme, options, message in cases:
        scheme.to(DEVICE)
        with pytest.raises(ValueError, match=message):
            attend(x, x, x, scheme=scheme, backend="triton", **options)
        assert explain(x, x, x, scheme=scheme, **options).backend in ("reference", "blockwise")
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        attend(x.double(), x.double(), x.double(), scheme=Plain(), backend="triton")


@pytest.mark.parametrize("name", keep_short(("plain", "distance-aware", "transformer-xl"), "distance-aware"))
def test_hooks_on_saved_tensors_may_change_layouts(name: str) -> None:
    """Offloading to the CPU does so with the usual layout, in which queries, keys and values are one tensor."""
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    qkv = torch.randn(1, 40, 3, HEADS, WIDTH, device=DEVICE, requires_grad=True)

    def run(backend: Any, pack: Any) -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = attend(*qkv.transpose(1, 3).unbind(2), scheme=scheme, backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), [qkv, *scheme.parameters()])]

    expected = run("reference", lambda x: x)
    for pack in (lambda x: x, torch.clone, lambda x: torch.empty(x.shape, dtype=x.dtype, device=DEVICE).copy_(x)):
        torch.testing.assert_close(run("triton", pack), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("n", "m", "width"), [pytest.param(300, 20, 24, marks=pytest.mark.long), (70, 90, 160)])
def test_transformer_xl_with_unusual_shapes(n: int, m: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more queries than keys, and head widths that are no power of two or above 128."""
    monkeypatch.setattr(MAX_CHUNK_PAIRS, 2**14)
    scheme = TransformerXL(HEADS, width, dim=20).to(DEVICE)
    q, k, v = (torch.randn(1, HEADS, length, width, device=DEVICE, requires_grad=True) for length in (n, m, m))
    results = []
    for backend in ("reference", "triton"):
        output = attend(q, k, v, scheme=scheme, backend=backend)
        results.append([output, *torch.autograd.grad(output.square().sum(), [q, k, v, *scheme.parameters()])])
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-3)


def test_plans_depend_on_the_matmul_precision() -> None:
    """Launches that were built under one setting must not be used under another."""
    from headwise.attention.triton_backend.plan import get_plan
    from headwise.attention.triton_backend.problem import TENSOR_PARAMS

    x = torch.randn(1, HEADS, 9, WIDTH, device=DEVICE)
    others = [None] * (len(TENSOR_PARAMS) - 3)
    arguments = (x, x, x, *others, 0.2, 0.0, 0, False, -1, -1, False, 0, False, 0.0, False, False)
    original_precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        highest_plan = get_plan(*arguments)
        torch.set_float32_matmul_precision("high")
        assert highest_plan.options(highest_plan.tile("dkv")).precision == "ieee"
        high_plan = get_plan(*arguments)
        assert high_plan.options(high_plan.tile("dkv")).precision == "tf32"
    finally:
        torch.set_float32_matmul_precision(original_precision)


def test_precision_that_is_set_by_torch_backends() -> None:
    """As transformers sets it, for `TrainingArguments(tf32=True)`; torch.get_float32_matmul_precision then fails."""
    code = """
import torch, headwise as hw
from headwise._compat import uses_tf32
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
settings = []
for precision in ("tf32", "ieee"):
    torch.backends.fp32_precision = precision
    q, k, v = torch.randn(3, 1, 2, 9, 16)
    output, expected = (hw.attend(q, k, v, scheme=hw.Plain(), backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(output, expected, atol=1e-2, rtol=1e-2)
    settings.append(uses_tf32())
assert settings == [True, False], settings
"""
    run_fresh_python(code)


def test_pipelines_have_one_stage_if_shared_memory_is_small() -> None:
    from headwise.attention.triton_backend.plan import Plan
    from headwise.attention.triton_backend.problem import TENSOR_PARAMS

    def num_stages(width: int, max_smem: int) -> int:
        x = torch.empty(1, HEADS, 500, width, dtype=torch.float16, device="meta")
        others = [None] * (len(TENSOR_PARAMS) - 3)
        plan = Plan(x, x, x, *others, 0.2, 0.0, 0, False, -1, -1, False, 0, False, 0.0, False, False)
        plan.max_smem = max_smem
        return plan.tile("dq").num_stages

    assert num_stages(128, max_smem=100_000) == 1 < num_stages(128, max_smem=166_912)
    assert num_stages(64, max_smem=100_000) == num_stages(64, max_smem=166_912)


def test_wide_heads_with_two_tables_have_small_tiles_if_shared_memory_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwise.attention.triton_backend.plan import Plan, clear_plans

    tiles, original = {}, Plan.tile

    def tile(plan: Plan, name: str) -> Any:
        tiles[name] = original(plan, name)
        return tiles[name]

    clear_plans()
    monkeypatch.setattr(Plan, "max_smem", 101_376)
    monkeypatch.setattr(Plan, "tile", tile)
    scheme = Disentangled(HEADS, 128, max_distance=30, dim=20, std=1.0).to(DEVICE)
    inputs = [torch.randn(1, HEADS, n, 128, device=DEVICE).half().mul(0.3).requires_grad_() for n in (70, 90, 90)]
    results = []
    for backend in ("reference", "triton"):
        output = attend(*inputs, scheme=scheme, backend=backend)
        results.append([output, *torch.autograd.grad(output.float().square().sum(), [*inputs, *scheme.parameters()])])
    clear_plans()
    assert (tiles["dkv"].block_n, tiles["dkv"].block_m, tiles["dkv"].num_stages) == (32, 32, 1)
    for result, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2 * float(expected.detach().abs().max()))


@pytest.mark.parametrize(("capability", "is_pipelined"), [((9, 0), True), ((10, 0), False), ((10, 3), False)])
def test_relative_shifts_are_not_pipelined_from_compute_capability_10_on(
    capability: tuple[int, int], is_pipelined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
    from headwise.attention.triton_backend.problem import TENSOR_PARAMS

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    def num_stages(name: str, *, has_table: bool) -> int:
        tensors = dict.fromkeys(TENSOR_PARAMS)
        x = torch.empty(1, HEADS, 500, 64, dtype=torch.float16, device="meta")
        tensors |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), x)
        if has_table:
            tensors["bias_uv_ptr"] = torch.empty(2, HEADS, 64, device="meta")
            tensors["dense_table_ptr"] = x.new_empty(HEADS, 999 + 2 * TABLE_PADDING, 64)
        scalars = (0.2, 0.0, 0, False, -1, -1, False, 0, False, 0.0, False, False)
        plan = Plan(*tensors.values(), *scalars, device=torch.device("cuda"))
        plan.max_smem = 232_448
        return plan.tile(name).num_stages

    for name in ("fwd", "dq", "dkv", "received"):
        assert (num_stages(name, has_table=True) > 1) == is_pipelined
        assert num_stages(name, has_table=False) > 1
    assert num_stages("dense_table", has_table=True) > 1


@pytest.mark.parametrize(
    ("capability", "max_smem", "stages"), [((9, 0), 232_448, 3), ((10, 0), 232_448, 2), ((12, 0), 101_376, 1)]
)
def test_wide_products_of_positions_fit_from_compute_capability_10_on(
    capability: tuple[int, int], max_smem: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwise.attention.triton_backend.plan import Plan
    from headwise.attention.triton_backend.problem import TENSOR_PARAMS

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x = torch.empty(1, HEADS, 500, 128, dtype=torch.float16, device="meta")
    tensors = dict.fromkeys(TENSOR_PARAMS) | dict.fromkeys(
        ("q_ptr", "k_ptr", "v_ptr", "position_q_ptr", "position_k_ptr"), x
    )
    scalars = (0.2, 0.0, 0, False, -1, -1, False, 0, False, 0.0, False, False)
    plan = Plan(*tensors.values(), *scalars, device=torch.device("cuda"))
    plan.max_smem = max_smem
    assert plan.tile("dq").num_stages == stages


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_auto_uses_the_kernels_on_a_gpu() -> None:
    x = torch.randn(1, HEADS, 8, WIDTH, device=DEVICE)
    assert explain(x, x, x, scheme=SCHEMES["distance-aware"].to(DEVICE)).backend == "triton"


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.long)])
def test_activation_checkpointing_changes_nothing(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)

    def attention(x: Tensor) -> Any:
        return attend(x, x, x, scheme=scheme, dropout=0.3, backend="triton")

    results = []
    for function in (attention, lambda x: checkpoint(attention, x, use_reentrant=reentrant)):
        torch.manual_seed(0)
        output = function(x)
        output.square().sum().backward()
        results.append([output, *(leaf.grad for leaf in (x, *scheme.parameters()))])
        for leaf in (x, *scheme.parameters()):
            leaf.grad = None
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, atol=0.0, rtol=0.0)


def test_autocast_chooses_the_precision() -> None:
    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, torch.float16):
        output = attend(x, x, x, scheme=scheme, backend="triton")
        grads = torch.autograd.grad(output.square().sum(), [x, *scheme.parameters()])
    assert output.dtype == torch.float16
    assert {grad.dtype for grad in grads} == {torch.float32}


def test_works_under_distributed_data_parallel(tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scheme = DistanceAware(HEADS, w_std=0.3)

        def forward(self, x: Tensor) -> Any:
            return attend(x, x, x, scheme=self.scheme, backend="triton")

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Model().to(DEVICE)
        x = torch.randn(2, HEADS, 40, WIDTH, device=DEVICE)
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.nn.parallel.DistributedDataParallel(model)(x).square().sum().backward()
        for parameter, grad in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, grad)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.short_form("values")
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_empty_inputs_have_zero_gradients(name: str, n: int, m: int) -> None:
    scheme = SCHEMES[name].to(DEVICE)
    q, k = (torch.randn(2, HEADS, length, WIDTH, device=DEVICE, requires_grad=True) for length in (n, m))
    output, received = attend(q, k, k, scheme=scheme, return_received=True, backend="triton")[:2]
    assert received is not None
    assert (output.shape, received.shape) == (q.shape, (2, HEADS, m))
    for grad in torch.autograd.grad(output.sum() + received.sum(), [q, k], materialize_grads=True):
        assert not grad.any()


def test_dense_table_with_more_rows_than_relative_positions() -> None:
    class PaddedTransformerXL(TransformerXL):
        """Has 3 more rows before the table and 2 after it, which belong to no pair."""

        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> Any:
            terms = super().forward(q, k, offset=offset)
            assert terms.key_table is not None
            table = torch.nn.functional.pad(terms.key_table, (0, 0, 3, 2), value=9.0)
            return replace(terms, key_table=table, table_start=terms.table_start - 3)

    q, k = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (20, 30))
    scheme = PaddedTransformerXL(HEADS, WIDTH).to(DEVICE)
    expected, result = (attend(q, k, k, scheme=scheme, offset=4, backend=name) for name in ("reference", "triton"))
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SCHEMES)
def test_packed_sequences_without_any_token(name: str) -> None:
    x, scheme = torch.randn(1, HEADS, 0, WIDTH, device=DEVICE, requires_grad=True), SCHEMES[name].to(DEVICE)
    for backend in ("triton", "auto"):
        output = attend(x, x, x, scheme=scheme, backend=backend, cu_seqlens=[0, 0], cu_seqlens_k=[0, 0])
        assert output.shape == x.shape
        for grad in torch.autograd.grad(output.sum(), (x, *scheme.parameters()), allow_unused=True):
            assert grad is None or not grad.any()
