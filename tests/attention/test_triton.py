"""The Triton kernels against float64: at most twice the error of the same maths in the same precision, gradients three
times. Without a GPU the kernels run in Triton's interpreter (float32 and float16; its bfloat16 is broken)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL, attend, explain
from tests.attention.oracle import sinusoid

pytest.importorskip("triton")
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if GPU else [torch.float32, torch.float16]
LENGTHS = (1000, 777) if GPU else (40, 70)  # more than one tile, and no multiple of one
HEADS, WIDTH = 2, 32

torch.manual_seed(0)
SCHEMES: dict[str, Scheme] = {
    "plain": Plain(),
    "distance-aware": DistanceAware(HEADS, w_spread=0.1, v_spread=1.0),
    "distance-aware-far": DistanceAware(HEADS, w_spread=2.0, v_spread=1.0),
    "distance-aware-near": DistanceAware(HEADS, w_init=-1.5, w_spread=0.5, v_spread=1.0),
    "distance-aware-unrectified": DistanceAware(HEADS, rectify=False, w_spread=0.1, v_spread=1.0),
    "relative": RelativePositions(HEADS, WIDTH, k=3),
    "relative-wide": RelativePositions(HEADS, WIDTH, k=50, per_head=True, values=False),
    "relative-none": RelativePositions(HEADS, WIDTH, k=0, keys=False),
    "tener": Tener(HEADS, WIDTH),
    "transformer-xl": TransformerXL(HEADS, WIDTH, dim=20),
}
with torch.no_grad():
    for parameter in SCHEMES["transformer-xl"].parameters():
        parameter.mul_(10.0)  # else its positions hardly count

OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "causal": {"causal": True, "offset": 21},
    "padded": {"key_padding": "lengths", "query_padding": "lengths"},
    "masked": {"mask": True, "position_bias": True},
    "grouped": {"key_heads": 1, "offset": 40, "scale": 0.1},
    "short": {"key_heads": 1, "offset": 7, "key_padding": "lengths"},
    "cu_seqlens": {"cu_seqlens": True, "causal": True},
    "output": {"asked": (), "key_padding": "lengths"},
    "output-causal": {"asked": (), "causal": True, "key_heads": 1, "offset": 10},
    "rows": {"asked": ("weight_norms", "lse"), "key_padding": "lengths"},
}


def same_maths(
    scheme: Scheme, may: Tensor, bias: Tensor | None, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> Any:
    """The paper's formula as one would write it in PyTorch, every step in the inputs' precision."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n, m, offset = q.shape[2], k.shape[2], options.get("offset", 0)
    i, j = offset + torch.arange(n, device=q.device)[:, None], torch.arange(m, device=q.device)
    scale = options.get("scale") or q.shape[3] ** -0.5
    if isinstance(scheme, Tener):
        waves = torch.stack([sinusoid(int(t), WIDTH) for t in range(1 - m, offset + n)]).to(q)
        relative = ((q + scheme.v[:, None].to(dtype)) @ waves.mT).gather(-1, (i - j + m - 1).expand(*q.shape[:3], m))
        scores = ((q + scheme.u[:, None].to(dtype)) @ k.mT + relative) * (options.get("scale") or 1.0)
    elif isinstance(scheme, TransformerXL):
        waves = torch.stack([sinusoid(int(t), scheme.dim) for t in range(1 - m, offset + n)]).to(q)
        rows = (waves @ scheme.projection.weight.to(dtype).T).unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
        relative = ((q + scheme.v[:, None].to(dtype)) @ rows.mT).gather(-1, (i - j + m - 1).expand(*q.shape[:3], m))
        scores = ((q + scheme.u[:, None].to(dtype)) @ k.mT + relative) * scale
    else:
        scores = q @ k.mT * scale
    if isinstance(scheme, DistanceAware):
        assert scheme.v is not None
        sharpness = scheme.v.to(dtype)[:, None, None]
        weighted = scheme.w.to(dtype)[:, None, None] * (i - j).abs().to(dtype)
        f = (1 + sharpness.exp()) * torch.sigmoid(weighted - sharpness)
        scores = (scores.relu() if scheme.rectify else scores) * f
    if isinstance(scheme, RelativePositions) and scheme.key_table is not None:
        row = (j - i).clamp(-scheme.k, scheme.k) + scheme.k
        scores = scores + (q @ scheme.key_table.to(dtype).mT * scale).gather(-1, row.expand(*q.shape[:3], m))
    if bias is not None:
        scores = scores + bias.to(dtype)
    weights = torch.softmax(scores.masked_fill(~may, -torch.inf), dim=-1).nan_to_num(0.0)
    output = weights @ v
    if isinstance(scheme, RelativePositions) and scheme.value_table is not None:
        row = (j - i).clamp(-scheme.k, scheme.k) + scheme.k
        of_rows = weights.new_zeros(*weights.shape[:3], 2 * scheme.k + 1)
        output = output + of_rows.scatter_add(-1, row.expand_as(weights), weights) @ scheme.value_table.to(dtype)
    seen = may.any(dim=-1)
    lse = scores.masked_fill(~may & seen[..., None], -torch.inf).logsumexp(dim=-1).masked_fill(~seen, -torch.inf)
    return {
        "output": output,
        "received": weights.sum(dim=2),
        "weight_norms": weights.square().sum(dim=3),
        "lse": lse,
    }


def prepare(options: dict[str, Any], batch: int, n: int, m: int) -> tuple[dict[str, Any], Tensor, int]:
    """The options with their tensors, the mask they add up to, and the number of key heads."""
    options = dict(options)
    key_heads = options.pop("key_heads", HEADS)
    may = torch.ones(batch, HEADS, n, m, dtype=torch.bool, device=DEVICE)
    i, j = torch.arange(n, device=DEVICE), torch.arange(m, device=DEVICE)
    if options.get("causal"):
        may &= j <= i[:, None] + options.get("offset", 0)
    if options.get("key_padding"):
        options["key_padding"] = torch.tensor([m, m // 3], device=DEVICE)
        options["query_padding"] = torch.tensor([n, n // 2], device=DEVICE)
        may &= (j < options["key_padding"][:, None])[:, None, None] & (i < options["query_padding"][:, None])[
            :, None, :, None
        ]
    if options.get("cu_seqlens"):
        options["cu_seqlens"] = torch.tensor([0, n // 3, n // 3, n // 3 + 1, n], device=DEVICE)
        text = torch.searchsorted(options["cu_seqlens"][1:], i, right=True)
        may &= text == text[:, None]
    if options.get("mask"):
        options["mask"] = torch.rand(2, 1, n, m, device=DEVICE) > 0.3
        options["mask"][:, :, 5] = False  # a query without a key
        options["position_bias"] = torch.randn(1, HEADS, n, m, device=DEVICE)
        may &= options["mask"]
    return options, may, key_heads


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", SCHEMES)
def test_as_exact_as_the_precision(name: str, option: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headwise.attention.triton_backend.query_chunks.STRIP", 1
    )  # strips as small as they come, so several
    if option == "cu_seqlens" and name == "transformer-xl":
        pytest.skip("packed texts have no kernel for Transformer-XL")
    n, m = {"short": (20, 27), "cu_seqlens": (LENGTHS[0], LENGTHS[0])}.get(option, LENGTHS)
    if OPTIONS[option].get("asked") == ():
        n, m = 3 * n, 3 * m
    batch = 1 if option == "cu_seqlens" else 2
    scheme = SCHEMES[name].to(DEVICE)
    options, may, key_heads = prepare(OPTIONS[option], batch, n, m)
    inputs = [
        torch.randn(batch, heads, length, WIDTH, device=DEVICE).mul(0.7).to(dtype)
        for heads, length in ((HEADS, n), (key_heads, m), (key_heads, m))
    ]
    directions: list[Tensor] = []
    asked = options.pop("asked", ("received", "weight_norms", "lse"))
    given_bias = [options.pop("position_bias")] if "position_bias" in options else []

    def run(how: str, precision: torch.dtype) -> list[Tensor]:
        leaves = [x.to(precision).detach().requires_grad_() for x in inputs]
        owner = scheme.to(torch.float64 if precision == torch.float64 else torch.float32)
        biases = [x.to(precision).detach().requires_grad_() for x in given_bias]
        bias = biases[0] if biases else None
        # Memory that a kernel should have written, and did not, is NaN.
        torch.use_deterministic_algorithms(how == "triton", warn_only=True)
        if how == "triton":
            more: dict[str, Any] = {f"return_{what}": True for what in asked}
            q, k, v = leaves
            outputs = attend(q, k, v, scheme=owner, position_bias=bias, backend="triton", **more, **options)
            outputs = outputs if asked else (outputs,)
        else:
            kept = {name: options[name] for name in ("offset", "scale") if name in options}
            found = same_maths(owner, may, bias, *leaves, **kept)
            outputs = tuple(found[what] for what in ("output", *asked))
        directions[:] = directions or [torch.randn(x.shape, dtype=torch.float64, device=DEVICE) for x in outputs]
        given = [direction.to(x.dtype) for x, direction in zip(outputs, directions, strict=True)]
        gradients = torch.autograd.grad(outputs, [*leaves, *biases, *owner.parameters()], given)
        torch.use_deterministic_algorithms(False)
        return [*outputs, *gradients]

    exact = run("plain", torch.float64)
    naive = run("plain", dtype)
    ours = run("triton", dtype)
    for place, (mine, same, true) in enumerate(zip(ours, naive, exact, strict=True)):
        known = true.isfinite()  # log-sums of queries without a key are not
        assert torch.equal(mine[~known].double(), true[~known])
        mine, same, true = mine[known], same[known], true[known]
        error, theirs = (mine.double() - true).abs().max(), (same.double() - true).abs().max()
        terms = (
            2 * n * m if place > 3 + len(asked) + len(given_bias) else 1
        )  # a head's parameter has a gradient from every pair: a sum of many
        floor = 8 * terms**0.5 * torch.finfo(dtype).eps * true.abs().max()
        assert error <= (2 if place <= len(asked) else 3) * theirs + floor, (
            f"result {place}: {error:.1e} against {theirs:.1e}"
        )


@pytest.mark.parametrize("name", ["plain", "distance-aware", "transformer-xl"])
def test_backward_drops_what_forward_dropped(name: str) -> None:
    n = 32
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    q, k = (torch.randn(1, HEADS, n, WIDTH, device=DEVICE, requires_grad=True) for _ in range(2))
    v = torch.eye(n, device=DEVICE).expand(1, HEADS, n, n).clone().requires_grad_()

    rows: dict[str, Any] = {"return_received": True, "return_weight_norms": True, "return_lse": True}
    of_rows = [torch.randn(1, HEADS, n, device=DEVICE) for _ in rows]  # the gradients of what is before dropout

    def run(dropout: float) -> list[Tensor]:
        torch.manual_seed(3)
        return list(attend(q, k, v, scheme=scheme, dropout=dropout, backend="triton", **rows))

    (whole, *before), (dropped, *same) = run(0.0), run(0.4)
    torch.testing.assert_close(same, before)
    kept = dropped != 0
    assert 0.3 < 1 - kept.float().mean() < 0.5
    torch.testing.assert_close(dropped, torch.where(kept, whole / 0.6, 0.0))
    direction = torch.randn_like(dropped)
    dq, dk, dv = torch.autograd.grad(run(0.4), (q, k, v), [direction, *of_rows])
    torch.testing.assert_close(dv, dropped.mT @ direction)
    through_map = torch.autograd.grad(run(0.0), (q, k), [torch.where(kept, direction / 0.6, 0.0), *of_rows])
    torch.testing.assert_close((dq, dk), through_map, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("keys", "width"), [(0, WIDTH), (6, 0)])
def test_nothing_to_see_and_nothing_to_give(keys: int, width: int) -> None:
    """Without keys rows are empty; values without width change nothing about the weights."""
    q = torch.randn(1, HEADS, 5, WIDTH, device=DEVICE, requires_grad=True)
    k, v = torch.randn(1, HEADS, keys, WIDTH, device=DEVICE), torch.randn(1, HEADS, keys, width, device=DEVICE)
    options: dict[str, Any] = {"return_received": True, "return_weight_norms": True, "return_lse": True}
    found = []
    for backend in ("reference", "triton"):
        results = attend(q, k, v, scheme=Plain(), backend=backend, **options)
        found.append([*results, *torch.autograd.grad(sum(x.sum() for x in results), q)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", ["distance-aware-near", "relative", "transformer-xl"])
def test_two_runs_give_the_same_bits(name: str) -> None:
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    inputs = [torch.randn(2, HEADS, 140, WIDTH, device=DEVICE, requires_grad=True) for _ in range(3)]
    runs = []
    for _ in range(2):
        output = attend(*inputs, scheme=scheme, backend="triton")
        runs.append([output, *torch.autograd.grad(output.square().sum(), [*inputs, *scheme.parameters()])])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_compiles_in_one_graph() -> None:
    torch.compiler.reset()
    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)

    def function(x: Tensor) -> Any:
        return attend(x, x, x, scheme=scheme, return_received=True, backend="triton")

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for mine, true in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(mine, true)
    mine, true = (torch.autograd.grad(f(x)[0].square().sum(), x) for f in (compiled, function))
    torch.testing.assert_close(mine, true)


def test_operators_are_well_formed() -> None:
    from headwise.attention.triton_backend.operator import operators
    from headwise.attention.triton_backend.plan import surrounded

    q, k, v = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (20, 30, 30))
    w, sharpness = torch.randn(2, HEADS, device=DEVICE)
    relative, bias = torch.randn(1, HEADS, 20, 5, device=DEVICE), torch.randn(1, 1, 20, 30, device=DEVICE)
    distance = (q, k, v, w, sharpness, *[None] * 10, 0.2, 3, True, True, 0, False, 0.0, True, True)
    tables = (
        q,
        k,
        v,
        None,
        None,
        relative,
        None,
        None,
        bias,
        *[None] * 6,
        0.2,
        3,
        False,
        False,
        2,
        True,
        0.0,
        False,
        False,
    )
    table = surrounded(torch.randn(HEADS, 49, WIDTH, device=DEVICE))
    biases = torch.randn(2, HEADS, WIDTH, device=DEVICE)
    settings = (0.2, 3, True, False, 0, False, 0.0, True, True)
    askew = (q, k, v, None, None, None, biases, table, bias, *[None] * 6, *settings)
    for arguments in (distance, tables, askew):
        torch.library.opcheck(operators.forward, arguments)
        results = operators.forward(*arguments)
        given = (*arguments, True, *(results[i] for i in (0, 1, 3, 4)), *results)
        torch.library.opcheck(operators.backward, given)


def test_what_has_no_kernel_is_said_and_auto_goes_elsewhere() -> None:
    x = torch.randn(1, HEADS, 8, WIDTH, device=DEVICE)
    cases: list[tuple[Scheme, dict[str, Any], str]] = [
        (DistanceAware(HEADS, mapping="clip"), {}, "learnable sigmoid"),
        (DistanceAware(HEADS, adjust="late-add"), {}, "multiplies early"),
        (Plain(), {"return_weights": True}, "whole maps"),
    ]
    for scheme, options, message in cases:
        scheme.to(DEVICE)
        with pytest.raises(ValueError, match=message):
            attend(x, x, x, scheme=scheme, backend="triton", **options)
        assert explain(x, x, x, scheme=scheme, **options).backend in ("reference", "blockwise")
    with pytest.raises(ValueError, match=r"not in torch\.float64"):
        attend(x.double(), x.double(), x.double(), scheme=Plain(), backend="triton")


@pytest.mark.parametrize("name", ["plain", "distance-aware", "transformer-xl"])
def test_hooks_on_saved_tensors_may_lay_them_out_anew(name: str) -> None:
    """As offloading to the CPU does, here of the usual layout, with queries, keys and values in one tensor."""
    scheme = SCHEMES[name].to(DEVICE, torch.float32)
    together = torch.randn(1, 70, 3, HEADS, WIDTH, device=DEVICE, requires_grad=True)

    def run(backend: Any, pack: Any) -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = attend(*together.transpose(1, 3).unbind(2), scheme=scheme, backend=backend)
        return [output, *torch.autograd.grad(output.square().sum(), [together, *scheme.parameters()])]

    expected = run("reference", lambda x: x)
    for pack in (lambda x: x, torch.clone, lambda x: torch.empty(x.shape, dtype=x.dtype, device=DEVICE).copy_(x)):
        torch.testing.assert_close(run("triton", pack), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("n", "m", "width"), [(300, 20, 24), (70, 90, 160)])
def test_transformer_xl_of_odd_shapes(n: int, m: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more queries than keys, and heads whose width is no power of two, or more than 128."""
    monkeypatch.setattr("headwise.attention.triton_backend.query_chunks.STRIP", 2**14)
    scheme = TransformerXL(HEADS, width, dim=20).to(DEVICE)
    q, k, v = (torch.randn(1, HEADS, rows, width, device=DEVICE, requires_grad=True) for rows in (n, m, m))
    found = []
    for backend in ("reference", "triton"):
        output = attend(q, k, v, scheme=scheme, backend=backend)
        found.append([output, *torch.autograd.grad(output.square().sum(), [q, k, v, *scheme.parameters()])])
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-3)


def test_a_plan_keeps_the_precision_that_it_was_made_for() -> None:
    """Else launches that were prepared under another setting would serve calls under this one."""
    from headwise.attention.triton_backend.plan import plan_of

    x = torch.randn(1, HEADS, 9, WIDTH, device=DEVICE)
    arguments = (x, x, x, *[None] * 12, 0.2, 0, False, False, 0, False, 0.0, False, False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        plan = plan_of(*arguments)
        torch.set_float32_matmul_precision("high")
        assert plan.options(plan.tile("keys")).precision == "ieee"
        other = plan_of(*arguments)
        assert other.options(other.tile("keys")).precision == "tf32"
    finally:
        torch.set_float32_matmul_precision(before)


def test_pipelines_are_short_where_shared_memory_is_small() -> None:
    from headwise.attention.triton_backend.plan import Plan

    def stages(width: int, roomy: bool) -> int:
        x = torch.empty(1, HEADS, 500, width, dtype=torch.float16, device="meta")
        plan = Plan(x, x, x, *[None] * 12, 0.2, 0, False, False, 0, False, 0.0, False, False)
        plan.roomy = roomy
        return plan.tile("queries").stages

    assert stages(128, roomy=False) == 1 < stages(128, roomy=True)
    assert stages(64, roomy=False) == stages(64, roomy=True)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_auto_takes_the_kernels_on_a_gpu() -> None:
    x = torch.randn(1, HEADS, 8, WIDTH, device=DEVICE)
    assert explain(x, x, x, scheme=SCHEMES["distance-aware"].to(DEVICE)).backend == "triton"


def run(function: Any, x: Tensor, scheme: Scheme) -> list[Tensor]:
    output = function(x)
    return [output, *torch.autograd.grad(output.square().sum(), [x, *scheme.parameters()])]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)

    def attention(x: Tensor) -> Any:
        return attend(x, x, x, scheme=scheme, dropout=0.3, backend="triton")

    found = []
    for function in (attention, lambda x: checkpoint(attention, x, use_reentrant=reentrant)):
        torch.manual_seed(0)
        output = function(x)
        output.square().sum().backward()
        found.append([output, *(leaf.grad for leaf in (x, *scheme.parameters()))])
        for leaf in (x, *scheme.parameters()):
            leaf.grad = None
    for mine, true in zip(*found, strict=True):
        torch.testing.assert_close(mine, true, atol=0.0, rtol=0.0)


def test_autocast_chooses_the_precision() -> None:
    scheme = SCHEMES["distance-aware"].to(DEVICE, torch.float32)
    x = torch.randn(1, HEADS, 40, WIDTH, device=DEVICE, requires_grad=True)
    with torch.autocast(DEVICE, torch.float16):
        output, *gradients = run(lambda x: attend(x, x, x, scheme=scheme, backend="triton"), x, scheme)
    assert output.dtype == torch.float16
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


def test_works_under_distributed_data_parallel(tmp_path: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scheme = DistanceAware(HEADS, w_spread=0.3)

        def forward(self, x: Tensor) -> Any:
            return attend(x, x, x, scheme=self.scheme, backend="triton")

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Model().to(DEVICE)
        x = torch.randn(2, HEADS, 40, WIDTH, device=DEVICE)
        alone = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        torch.nn.parallel.DistributedDataParallel(model)(x).square().sum().backward()
        for parameter, gradient in zip(model.parameters(), alone, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0)])
def test_nothing_to_attend(name: str, n: int, m: int) -> None:
    scheme = SCHEMES[name].to(DEVICE)
    q, k = (torch.randn(2, HEADS, length, WIDTH, device=DEVICE, requires_grad=True) for length in (n, m))
    output, received = attend(q, k, k, scheme=scheme, return_received=True, backend="triton")
    assert (output.shape, received.shape) == (q.shape, (2, HEADS, m))
    for grad in torch.autograd.grad(output.sum() + received.sum(), [q, k], materialize_grads=True):
        assert not grad.any()


def test_a_table_with_more_rows_than_there_are_positions() -> None:
    class Wide(TransformerXL):
        """With 3 rows more in front, and 2 behind, which no pair meets."""

        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> Any:
            terms = super().forward(q, k, offset=offset)
            assert terms.key_table is not None
            table = torch.nn.functional.pad(terms.key_table, (0, 0, 3, 2), value=9.0)
            return replace(terms, key_table=table, table_start=terms.table_start - 3)

    q, k = (torch.randn(1, HEADS, length, WIDTH, device=DEVICE) for length in (20, 30))
    scheme = Wide(HEADS, WIDTH).to(DEVICE)
    true, mine = (attend(q, k, k, scheme=scheme, offset=4, backend=backend) for backend in ("reference", "triton"))
    torch.testing.assert_close(mine, true, atol=1e-4, rtol=1e-3)
