"""PyTorch features with our layers: compile, export, autocast, vmap, copy and state dict."""

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.func import functional_call, grad, stack_module_state, vmap

from headwise import EncoderLayer, attend
from headwise.attention.blockwise.operator import operators
from tests.attention.cases import RETURN_ALL, SCHEMES, make_scheme
from tests.short_form import keep_short

HEADS, HEAD_DIM = 2, 8


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def layer(name: str, backend: Any = "auto") -> EncoderLayer:
    scheme = make_scheme(name, HEADS, HEAD_DIM, dtype=torch.float32)
    return EncoderLayer(HEADS * HEAD_DIM, HEADS, scheme=scheme, dropout=0.0, backend=backend)


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(module.parameters())))


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", keep_short(SCHEMES, "distance-aware", "t5-bias"))
def test_compile_without_graph_breaks(name: str, backend: Any) -> None:
    """aot_eager traces forward and backward into one graph each, and needs no C++ compiler."""
    model, x = layer(name, backend), torch.randn(2, 10, HEADS * HEAD_DIM)
    lengths = torch.tensor([10, 7])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    output, expected = compiled(x, key_padding=lengths), model(x, key_padding=lengths)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients(model, output.square().sum()), gradients(model, expected.square().sum()))


@pytest.mark.parametrize("name", keep_short(SCHEMES, "rpr"))
def test_compiles_once_for_all_lengths(name: str) -> None:
    model, counter = layer(name, "auto").eval(), CompileCounter()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for length in (7, 8, 12):
        x = torch.randn(2, length, HEADS * HEAD_DIM)
        torch.testing.assert_close(compiled(x), model(x))
    assert counter.frame_count == 1


@pytest.mark.long
def test_compile_with_inductor() -> None:
    scheme = make_scheme("distance-aware", HEADS, HEAD_DIM, dtype=torch.float32)
    q = torch.randn(2, HEADS, 10, HEAD_DIM, requires_grad=True)
    for backend in ("reference", "blockwise"):

        def function(q: Tensor, backend: Any = backend) -> Any:
            return attend(q, q, q, scheme=scheme, causal=True, backend=backend)

        compiled = torch.compile(function, fullgraph=True)
        torch.testing.assert_close(compiled(q), function(q))
        (gradient,), (expected,) = (torch.autograd.grad(f(q).square().sum(), q) for f in (compiled, function))
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("backend", keep_short(("auto", "blockwise"), "blockwise"))
@pytest.mark.parametrize("name", keep_short(SCHEMES, "transformer-xl"))
def test_export_for_any_length(name: str, backend: Any) -> None:
    model = layer(name, backend).eval()
    length = torch.export.Dim("length", min=2, max=4096)
    x = torch.randn(2, 10, HEADS * HEAD_DIM)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: length}})
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    loaded = torch.export.load(saved).module()
    longer = torch.randn(2, 23, HEADS * HEAD_DIM)
    torch.testing.assert_close(loaded(longer), model(longer))


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_autocast(name: str, backend: Any) -> None:
    model, x = layer(name, backend), torch.randn(2, 10, HEADS * HEAD_DIM)
    exact = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x)
        low.square().sum().backward()
    torch.testing.assert_close(low.float(), exact, atol=0.15, rtol=0.05)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["auto", "reference", "blockwise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_shapes_on_the_meta_device(name: str, backend: Any) -> None:
    model = layer(name, backend).to("meta")
    x = torch.empty(2, 10, HEADS * HEAD_DIM, device="meta", requires_grad=True)
    output = model(x, causal=True)
    assert output.shape == x.shape
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient.shape == x.shape


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("name", SCHEMES)
def test_vmap_over_models(name: str, backend: Any) -> None:
    models = [layer(name, backend).double() for _ in range(3)]
    x = torch.randn(3, 2, 6, HEADS * HEAD_DIM, dtype=torch.float64)
    parameters, buffers = stack_module_state(list(models))

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(models[0], (parameters, buffers), (x,))
        return output.pow(3).sum()

    stacked = vmap(grad(loss))(parameters, buffers, x)
    for i, model in enumerate(models):
        separate = gradients(model, model(x[i]).pow(3).sum())
        for gradient, expected in zip(stacked.values(), separate, strict=True):
            torch.testing.assert_close(gradient[i], expected)


def test_vmap_draws_separate_dropout_masks() -> None:
    scheme = make_scheme("distance-aware", HEADS, HEAD_DIM, dtype=torch.float32)
    q = torch.randn(1, HEADS, 10, HEAD_DIM).expand(3, 1, HEADS, 10, HEAD_DIM)
    for backend in ("reference", "blockwise"):

        def function(q: Tensor, backend: Any = backend) -> Any:
            return attend(q, q, q, scheme=scheme, dropout=0.5, backend=backend)

        outputs = vmap(function, randomness="different")(q)
        assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("name", SCHEMES)
def test_copy_and_state_dict(name: str) -> None:
    model, x = layer(name).eval(), torch.randn(2, 10, HEADS * HEAD_DIM)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(x), model(x), atol=0.0, rtol=0.0)
    fresh = layer(name).eval()
    assert not torch.equal(fresh(x), model(x))
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x), model(x), atol=0.0, rtol=0.0)


@pytest.mark.parametrize("name", keep_short(SCHEMES, "rpr"))
def test_operators_pass_opcheck(name: str) -> None:
    """torch.library.opcheck: schema, fake implementation and AOT dispatch of both custom operators."""
    scheme = make_scheme(name, HEADS, HEAD_DIM, dtype=torch.float32).requires_grad_(False)
    q, k, v = (torch.randn(2, HEADS, n, HEAD_DIM) for n in (5, 7, 7))
    terms = scheme(q, k, offset=1)
    relative_q = None if terms.biases is None else terms.relative_q
    tables = (terms.key_table, terms.query_table, terms.value_table, terms.relative_bias)
    tensors = (terms.content_q, terms.k, v, relative_q, *tables)
    coefficients = None if terms.coefficients is None else terms.coefficients(8).float()
    bias, sinks = None, torch.zeros(HEADS)
    cu_seqlens = (None, None)
    masks = (None, torch.ones(2, 7, dtype=torch.bool), None, *cu_seqlens, torch.tensor(3))
    scale, softcap, offset, is_aligned, causal, window, dropout = 0.5, 2.0, 1, True, True, (3, -1), 0.2
    table = (terms.table_start, terms.is_full_table)
    returned = [True] * len(RETURN_ALL)
    options = (
        scale,
        softcap,
        offset,
        is_aligned,
        causal,
        *window,
        *table,
        terms.adjust,
        terms.rectify,
        dropout,
        *returned,
    )
    arguments = (*tensors, coefficients, bias, sinks, *masks, *options)
    torch.library.opcheck(operators.forward, arguments)
    results = operators.forward(*arguments)
    needs_grad = [x is not None for x in (*tensors, coefficients, bias, sinks)]
    torch.library.opcheck(operators.backward, (*arguments, needs_grad, results[1], *results))
