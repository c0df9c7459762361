"""Cached calls of the Triton backend: a repeated call gives what the first one gave."""

import sys
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import (
    Alibi,
    Disentangled,
    DistanceAware,
    Plain,
    RelativePositions,
    Scheme,
    SchemeTerms,
    T5Bias,
    Tener,
    TransformerXL,
    attend,
)
from headwise.attention.position_constants import position_constant
from headwise.attention.triton_backend import cached_calls, cached_dense, native, plan, problem, transformer_xl
from headwise.attention.triton_backend.cached_passes import BoundCall
from headwise.attention.triton_backend.programs import BoundLaunch, Program
from tests.short_form import choose_size, keep_short

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.float32  # tiles of float32 are smaller
TOLERANCE = 3e-2 if DEVICE == "cuda" else 1e-5
BATCH, HEADS, WIDTH = choose_size(short=1, long=2), 2, 16
LENGTH = 70 if DEVICE == "cuda" else choose_size(short=12, long=40)  # one or two tiles
SMALL_LENGTH = choose_size(short=12, long=20)

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "plain": Plain,
    "distance-aware": lambda: DistanceAware(HEADS, v_std=1.0),
    "distance-aware-unrectified": lambda: DistanceAware(HEADS, rectify=False),
    "alibi": lambda: Alibi(HEADS, learned=True),
    "rpr": lambda: RelativePositions(HEADS, WIDTH, k=3),
    "rpr-keys": lambda: RelativePositions(HEADS, WIDTH, k=3, values=False),
    "rpr-values-per-head": lambda: RelativePositions(HEADS, WIDTH, k=5, keys=False, per_head=True),
    "transformer-xl": lambda: TransformerXL(HEADS, WIDTH),
    "tener": lambda: Tener(HEADS, WIDTH),
    "t5-bias": lambda: T5Bias(HEADS, std=1.0),
    "disentangled": lambda: Disentangled(HEADS, WIDTH, max_distance=8, std=1.0),
}
#: The schemes whose cached calls compute products with tables in another way than the operators.
OTHER_PRODUCTS = ("rpr", "rpr-keys", "rpr-values-per-head")
OPTIONS: dict[str, dict[str, Any]] = {
    "no-options": {},
    "causal": {"causal": True},
    "padded": {"key_padding": True},
    "dropout": {"dropout": 0.3, "key_padding": True, "scale": 0.2},
    "window-softcap": {"window": (6, 2), "softcap": 3.0},
    "received": {"return_received": True, "key_padding": True},
    "received-causal-dropout": {"return_received": True, "causal": True, "dropout": 0.3},
    "lse": {"return_lse": True, "key_padding": True},
    "lse-window-dropout": {"return_lse": True, "window": (6, 2), "dropout": 0.3},
}
#: The schemes whose received attention and lse are not cached: those with tables.
USUAL_RECEIVED = (*OTHER_PRODUCTS, "transformer-xl", "disentangled")


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    plan.clear_plans()
    cached_calls.clear_calls()
    yield
    plan.clear_plans()
    cached_calls.clear_calls()


def inputs(n: int, m: int, *, batch: int = BATCH, key_heads: int = HEADS, transposed: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    tensors = []
    for heads, length in ((HEADS, n), (key_heads, m), (key_heads, m)):
        shape = (batch, length, heads, WIDTH) if transposed else (batch, heads, length, WIDTH)
        x = torch.randn(shape, generator=generator).to(DEVICE, DTYPE)
        tensors.append((x.transpose(1, 2) if transposed else x).requires_grad_())
    return tensors


def run(tensors: list[Tensor], scheme: Scheme, **options: Any) -> list[Tensor]:
    """Return the output, received attention or lse if it is requested, and all gradients that are needed."""
    if options.pop("key_padding", False):
        lengths = torch.tensor([[tensors[1].shape[2] - 5], [tensors[1].shape[2]]], device=DEVICE)[:BATCH]
        options["key_padding"] = torch.arange(tensors[1].shape[2], device=DEVICE) < lengths
    torch.manual_seed(3)
    result: Any = attend(*tensors, scheme=scheme, backend="triton", **options)
    outputs = [result]
    if options.get("return_received") or options.get("return_lse"):
        outputs = [x for x in result if x is not None]
    parameters = [x for x in (*tensors, *scheme.parameters()) if x.requires_grad]
    loss = torch.stack([x.float().square().sum() for x in outputs]).sum()
    return [*[x.detach() for x in outputs], *torch.autograd.grad(loss, parameters)]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("max_short_length", [0, 512])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_repeated_calls_give_the_same_bits_as_the_operators(
    scheme: str, options: str, max_short_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "MAX_SHORT_LENGTH", max_short_length)
    monkeypatch.setattr(problem, "MAX_STAGED_LENGTH", max_short_length)
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    first = run(tensors, layer, **OPTIONS[options])
    num_calls = cached_calls.num_calls()  # on a GPU, the first calls of a process also run self-tests
    assert num_calls >= (0 if ("received" in options or "lse" in options) and scheme in USUAL_RECEIVED else 1)
    again = run(tensors, layer, **OPTIONS[options])
    assert cached_calls.num_calls() == num_calls
    for expected, actual in zip(first, again, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    monkeypatch.setattr(cached_calls, "call_key", lambda *_: None)
    tolerance = TOLERANCE if scheme in OTHER_PRODUCTS else 0.0
    for expected, actual in zip(run(tensors, layer, **OPTIONS[options]), again, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "plain", "distance-aware"))
def test_one_query_with_and_without_gradients(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, other kernels compute it."""
    layer, (q, k, v) = SCHEMES[scheme]().to(DEVICE), inputs(1, SMALL_LENGTH)
    options: dict[str, Any] = {"offset": SMALL_LENGTH - 1}
    results = []
    for _ in range(2):
        results.append(run([q, k, v], layer, **options))
        with torch.no_grad():
            results.append([attend(q, k, v, scheme=layer, backend="triton", **options)])
    monkeypatch.setattr(cached_calls, "call_key", lambda *_: None)
    expected = run([q, k, v], layer, **options)
    for result in results:
        for actual, correct in zip(result, expected, strict=False):
            torch.testing.assert_close(
                actual, correct, rtol=TOLERANCE, atol=TOLERANCE * float(correct.abs().max() + 1e-3)
            )


@pytest.mark.parametrize("option", keep_short(("", "causal", "key_padding"), ""))
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scheme", ["transformer-xl", "disentangled"])
def test_dense_tables_with_several_chunks(
    scheme: str, transposed: bool, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks of 64 queries and a smaller one, whose gradients of scores need another layout."""
    options: dict[str, Any] = {option: True} if option else {}
    layer = SCHEMES[scheme]().to(DEVICE)
    tensors = inputs(150, 170, transposed=transposed)
    expected = run(tensors, layer, **options)
    plan.clear_plans()
    cached_calls.clear_calls()
    monkeypatch.setattr(transformer_xl, "MAX_CHUNK_PAIRS", 1)
    for _ in range(2):
        for actual, value in zip(run(tensors, layer, **options), expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=TOLERANCE, atol=TOLERANCE * float(value.abs().max()))


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "distance-aware"))
def test_calls_with_other_layouts_or_options_are_not_confused(scheme: str) -> None:
    layer = SCHEMES[scheme]().to(DEVICE)
    n = LENGTH if DEVICE == "cuda" else 12  # one tile is interpreted faster
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"n": n, "m": n}, {}),
        ({"n": n, "m": n}, {"causal": True}),
        ({"n": n, "m": n}, {"scale": 0.5}),
        ({"n": n, "m": n}, {"key_padding": True}),
        ({"n": n, "m": n, "transposed": True}, {}),
        ({"n": n, "m": n, "key_heads": 1}, {}),
        ({"n": 20, "m": 20}, {}),
        ({"n": 20, "m": 33}, {}),
    ]
    cases = choose_size(short=cases[1::2], long=cases)
    expected = [run(inputs(**shape), layer, **options) for shape, options in cases]
    num_calls = cached_calls.num_calls()
    assert num_calls >= len(cases)
    for (shape, options), first in zip(cases, expected, strict=True):
        for value, again in zip(first, run(inputs(**shape), layer, **options), strict=True):
            torch.testing.assert_close(again, value, rtol=0, atol=0)
    assert cached_calls.num_calls() == num_calls


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "rpr", "disentangled"))
def test_frozen_tensors_get_no_gradient(scheme: str) -> None:
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    everything = run(tensors, layer)[1:]
    leaves = [*tensors, *layer.parameters()]
    for frozen in range(0, len(leaves), choose_size(short=2, long=1)):
        leaves[frozen].requires_grad_(False)
        torch.manual_seed(3)
        output = attend(*tensors, scheme=layer, backend="triton")
        needed = [i for i in range(len(leaves)) if i != frozen]
        grads = torch.autograd.grad(output.float().square().sum(), [leaves[i] for i in needed])
        leaves[frozen].requires_grad_(True)
        for i, grad in zip(needed, grads, strict=True):
            torch.testing.assert_close(
                grad, everything[i], rtol=2e-2, atol=TOLERANCE * float(everything[i].abs().max())
            )


@pytest.mark.parametrize("scheme", ["transformer-xl", "disentangled"])
def test_dense_tables_and_biases_without_gradient_are_cached(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeBERTa has no biases, and adapters such as LoRA freeze tables; planning takes as long as the kernels."""
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    expected = run(tensors, layer)
    monkeypatch.setattr(cached_dense, "run_planned_backward", lambda *_: pytest.fail("planned"))
    parameters = list(layer.parameters())
    for frozen in (None, *parameters):
        for parameter in parameters:
            parameter.requires_grad_(parameter is not frozen)
        actual = run(tensors, layer)
        leaves = [x for x in (*tensors, *parameters) if x is not frozen]
        correct = [x for x, leaf in zip(expected[1:], (*tensors, *parameters), strict=True) if leaf is not frozen]
        assert len(actual) == 1 + len(leaves)
        for x, y in zip(actual, [expected[0], *correct], strict=True):
            torch.testing.assert_close(x, y, rtol=TOLERANCE, atol=TOLERANCE * float(y.abs().max()))


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("scheme", keep_short(("plain", "distance-aware", "tener", "t5-bias"), "plain"))
def test_received_attention_with_frozen_tensors(
    scheme: str, frozen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    for index in frozen:
        tensors[index] = tensors[index].detach()
    run(tensors, layer, return_received=True)
    cached = run(tensors, layer, return_received=True)
    monkeypatch.setattr(cached_calls, "call_key", lambda *_: None)
    for actual, expected in zip(cached, run(tensors, layer, return_received=True), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["output", "received"])
def test_a_loss_may_depend_on_one_result(name: str) -> None:
    tensors = inputs(LENGTH, LENGTH)

    def compute(backend: Any) -> list[Tensor]:
        result = attend(*tensors, scheme=Plain(), backend=backend, return_received=True)
        grads = torch.autograd.grad(getattr(result, name).float().square().sum(), tensors, allow_unused=True)
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(tensors, grads, strict=True)]

    expected = compute("reference")
    for _ in range(2):
        for actual, correct in zip(compute("triton"), expected, strict=True):
            torch.testing.assert_close(actual, correct, rtol=TOLERANCE, atol=TOLERANCE * float(correct.abs().max() + 1))


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "distance-aware", "rpr", "transformer-xl"))
def test_a_cached_call_reads_the_parameters_of_now(scheme: str) -> None:
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(LENGTH, LENGTH)
    run(tensors, layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(-0.7)
    changed = run(tensors, layer)
    expected = attend(*tensors, scheme=layer, backend="reference")
    torch.testing.assert_close(changed[0], expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    for name, parameter in list(layer.named_parameters()):
        owner = layer.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], torch.nn.Parameter(torch.full_like(parameter, 0.3)))
    replaced = run(tensors, layer)
    expected = attend(*tensors, scheme=layer, backend="reference")
    torch.testing.assert_close(replaced[0], expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)


def test_schemes_may_return_other_terms_in_each_call() -> None:
    class Alternating(Scheme):
        biases: tuple[Tensor, ...] = ()

        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
            return SchemeTerms(q=q, k=k, relative_bias=self.biases[0], table_start=-(self.biases[0].shape[1] // 2))

    layer, (q, k, v) = Alternating(), inputs(SMALL_LENGTH, SMALL_LENGTH)
    narrow, wide = (torch.randn(HEADS, size, device=DEVICE) for size in (5, 9))
    transposed = torch.randn(9, HEADS, device=DEVICE).T
    shared = torch.randn(1, 5, device=DEVICE)
    for bias in (narrow, wide, transposed, shared, narrow, wide, transposed, shared):
        layer.biases = (bias,)
        output, expected = (attend(q, k, v, scheme=layer, backend=backend) for backend in ("triton", "reference"))
        torch.testing.assert_close(output, expected, rtol=2e-3, atol=2e-3)


def test_masks_and_biases_of_another_layout_are_not_confused() -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH, batch=2)
    generator = torch.Generator().manual_seed(0)
    n = SMALL_LENGTH
    shapes: list[tuple[int, ...]] = [(n, n), (HEADS, n, n), (2, 1, n, n), (n, n)]
    for shape in shapes:
        mask = (torch.rand(shape, generator=generator) > 0.3).to(DEVICE)
        bias = torch.randn(shape, generator=generator).to(DEVICE, DTYPE)
        cases: list[dict[str, Any]] = [{"mask": mask}, {"position_bias": bias}, {"mask": mask.mT.contiguous().mT}]
        for options in cases:
            output, expected = (
                attend(q, k, v, scheme=layer, backend=backend, **options) for backend in ("triton", "reference")
            )
            torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("argument", ["key_padding", "query_padding"])
def test_lengths_are_not_read_as_a_mask(argument: str) -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH, batch=2)
    lengths: dict[str, Any] = {argument: torch.tensor([5, SMALL_LENGTH], device=DEVICE)}
    expected = attend(q, k, v, scheme=layer, backend="reference", **lengths)
    for _ in range(2):
        output = attend(q, k, v, scheme=layer, backend="triton", **lengths)
        torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("number_type", ["tensor", "subclass", "array"])
@pytest.mark.parametrize("argument", ["scale", "softcap"])
def test_numbers_may_be_tensors_whose_values_change(argument: str, number_type: str) -> None:
    class OtherTensor(torch.Tensor):
        pass

    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    tensor = torch.tensor(0.5)
    values = {"tensor": tensor, "subclass": tensor.as_subclass(OtherTensor), "array": tensor.numpy()}
    options: dict[str, Any] = {argument: values[number_type]}
    for number in (0.5, 3.0):
        tensor.fill_(number)
        output, expected = (
            attend(q, k, v, scheme=layer, backend=backend, **options) for backend in ("triton", "reference")
        )
        torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_the_dropout_probability_may_be_a_tensor() -> None:
    (q, k, v), dropout = inputs(SMALL_LENGTH, SMALL_LENGTH), torch.tensor(0.25)
    numbers: list[Any]
    for value in (0.25, 0.75):
        dropout.fill_(value)
        outputs, numbers = [], [dropout, value]
        for number in numbers:
            torch.manual_seed(0)
            outputs.append(attend(q, k, v, scheme=Plain(), backend="triton", dropout=number))
        torch.testing.assert_close(*outputs, rtol=0, atol=0)


def test_flags_may_be_tensors_whose_values_change() -> None:
    layer, (q, k, v), causal = Plain(), inputs(SMALL_LENGTH, SMALL_LENGTH), torch.tensor(True)
    for value in (True, False):
        causal.fill_(value)
        output = attend(q, k, v, scheme=layer, backend="triton", causal=causal)  # type: ignore[call-overload]
        expected = attend(q, k, v, scheme=layer, backend="reference", causal=value)
        torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_autocast_and_transforms_take_the_usual_way() -> None:
    layer, (q, k, v) = TransformerXL(HEADS, WIDTH).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    expected = attend(q, k, v, scheme=layer, backend="triton")
    low = torch.float16
    with torch.autocast(DEVICE, dtype=low):
        for tensors in ((q, k, v), (q.to(low), k.to(low), v.to(low))):
            for _ in range(2):
                output = attend(*tensors, scheme=layer, backend="triton")
                assert output.dtype == low
                torch.testing.assert_close(output.to(DTYPE), expected, rtol=5e-2, atol=5e-2)
    mapped = torch.func.vmap(lambda x: attend(x, k, v, scheme=layer, backend="triton"))(torch.stack([q, q]))
    torch.testing.assert_close(mapped[1], expected, rtol=1e-3, atol=1e-3)


def test_hooks_of_the_scheme_are_called() -> None:
    layer, tensors, calls = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH), []
    run(tensors, layer)
    layer.register_forward_hook(lambda *_: calls.append(1))
    run(tensors, layer)
    assert calls == [1]


def test_hooks_of_all_modules_are_called() -> None:
    layer, tensors, calls = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH), []
    run(tensors, layer)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    run(tensors, layer)
    hook.remove()
    assert calls == [1]


def test_a_replaced_method_forward_is_called() -> None:
    """accelerate replaces the method of an instance, to load offloaded parameters."""
    layer, other = DistanceAware(HEADS).to(DEVICE), DistanceAware(HEADS, w_init=-1.0).to(DEVICE)
    q, k, v = inputs(SMALL_LENGTH, SMALL_LENGTH)
    attend(q, k, v, scheme=layer, backend="triton")
    layer.forward = other.forward  # type: ignore[method-assign]
    expected = attend(q, k, v, scheme=other, backend="reference")
    for _ in range(2):
        output = attend(q, k, v, scheme=layer, backend="triton")
        torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_wrong_arguments_are_found_after_right_ones() -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    attend(q, k, v, scheme=layer, backend="triton")
    with pytest.raises(ValueError, match="dropout"):
        attend(q, k, v, scheme=layer, backend="triton", dropout=1.5)
    with pytest.raises(ValueError, match="same heads and length"):
        attend(q, k, v[:, :, :10], scheme=layer, backend="triton")
    with pytest.raises(ValueError, match="heads=3"):
        attend(q, k, v, scheme=DistanceAware(3).to(DEVICE), backend="triton")


@pytest.mark.parametrize("scheme", ["distance-aware", "rpr", "alibi"])
def test_schemes_on_another_device_are_refused(scheme: str) -> None:
    """Launches that are kept pass addresses, which are invalid on another device."""
    other = "cpu" if DEVICE == "cuda" else "meta"
    layer, (q, k, v) = SCHEMES[scheme]().to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    attend(q, k, v, scheme=layer, backend="triton")
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"returned .* on {other}, but q is on {DEVICE}"):
            attend(q, k, v, scheme=layer.to(other), backend="triton")


def test_gradients_do_not_depend_on_the_layout_of_the_outputs_gradient() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    run(tensors, layer)
    grads = []
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0)):
        output = attend(*tensors, scheme=layer, backend="triton")
        d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, DTYPE)
        inverse = [order.index(axis) for axis in range(4)]
        d_output = d_output.permute(order).contiguous().permute(inverse)
        grads.append(torch.autograd.grad(output, [*tensors, *layer.parameters()], d_output))
    for other in grads[1:]:
        for expected, actual in zip(grads[0], other, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)  # the order of sums may differ


def test_saved_tensors_may_be_copied() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH, transposed=True)
    expected = run(tensors, layer)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.cpu().contiguous(), lambda x: x.to(DEVICE)):
        actual = run(tensors, layer)
    for x, y in zip(expected, actual, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-3)


def test_the_saved_output_may_be_copied() -> None:
    """Hooks that copy large tensors may change the layout of the output but not those of the inputs."""
    (q, k, _), (_, _, v) = inputs(SMALL_LENGTH, SMALL_LENGTH, transposed=True), inputs(SMALL_LENGTH, SMALL_LENGTH)
    v = torch.cat([v, v], dim=-1).detach()
    expected = run([q, k, v], Plain())
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.contiguous() if x.numel() > q.numel() else x, lambda x: x
    ):
        actual = run([q, k, v], Plain())
    for x, y in zip(expected, actual, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "distance-aware", "rpr", "transformer-xl"))
def test_tensors_whose_rows_are_not_contiguous(scheme: str) -> None:
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    expected = run(tensors, layer)
    columns = [x.detach().mT.contiguous().mT.requires_grad_() for x in tensors]
    for _ in range(2):
        for x, y in zip(expected, run(columns, layer), strict=True):
            torch.testing.assert_close(y, x, rtol=2e-2, atol=TOLERANCE * float(x.abs().max()))


def test_padding_masks_may_be_parts_of_others() -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH + 1, batch=2)
    masks = torch.rand(4, SMALL_LENGTH + 1, generator=torch.Generator().manual_seed(0)).to(DEVICE) > 0.3
    for start in (0, 1, 2):
        mask = masks[start : start + 2]
        output, expected = (
            attend(q, k, v, scheme=layer, key_padding=mask, backend=backend) for backend in ("triton", "reference")
        )
        torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_second_derivatives_are_refused() -> None:
    layer, tensors = Plain(), inputs(SMALL_LENGTH, SMALL_LENGTH)
    run(tensors, layer)
    output = attend(*tensors, scheme=layer, backend="triton")
    (dq,) = torch.autograd.grad(output.float().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(dq.float().sum(), tensors[1])


def test_calls_without_gradients_record_nothing() -> None:
    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    expected = run(tensors, layer)[0]
    with torch.no_grad():
        output = attend(*tensors, scheme=layer, backend="triton")
    assert not output.requires_grad
    torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_parameters_of_other_types_take_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherTensor(torch.Tensor):
        """Stands for distributed tensors, whose address is not that of their values."""

    layer, tensors = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    expected = run(tensors, layer)
    monkeypatch.setattr(BoundCall, "attend", None)  # calling it fails
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, torch.nn.Parameter(parameter.detach().as_subclass(OtherTensor)))
    actual = run(tensors, layer)
    for x, y in zip(expected, actual, strict=True):
        torch.testing.assert_close(y.as_subclass(Tensor), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["key_table", "value_table"])
def test_tables_that_are_no_parameters(name: str) -> None:
    """Such as buffers, and the tables of replicas of `nn.DataParallel`, which are attributes."""
    layer, (q, k, v) = RelativePositions(HEADS, WIDTH, k=3).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    table = getattr(layer, name).detach()
    delattr(layer, name)
    for register in (layer.register_buffer, layer.__setattr__):
        register(name, table)
        for _ in range(2):
            output, expected = (attend(q, k, v, scheme=layer, backend=backend) for backend in ("triton", "reference"))
            torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)
        delattr(layer, name)


def test_autocast_converts_tensors_of_other_dtypes_in_each_call() -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    q, k, v = q.half(), k.float(), v.float()
    expected = attend(q.float(), k, v, scheme=layer, backend="reference")
    with torch.autocast(DEVICE, dtype=torch.float16):
        for _ in range(2):
            output = attend(q, k, v, scheme=layer, backend="triton")
            torch.testing.assert_close(output.float(), expected, rtol=5e-2, atol=5e-2)
    with pytest.raises(TypeError, match="same dtype"):
        attend(q, k, v, scheme=layer, backend="triton")


def test_parameters_and_sinks_of_any_layout() -> None:
    """Numbers for each head that are a column of a matrix, or one number for all heads."""

    class Slopes(Scheme):
        slopes: Tensor

        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
            return SchemeTerms(q=q, k=k, slopes=self.slopes)

    (q, k, v), numbers = inputs(SMALL_LENGTH, SMALL_LENGTH), torch.randn(HEADS, 3, device=DEVICE)
    slopes, alibi, distance_aware = Slopes(), Alibi(HEADS), DistanceAware(HEADS)
    for x in (numbers[:, 1], numbers[0, :1].expand(HEADS)):
        slopes.slopes = x
        alibi.slopes = distance_aware.w = distance_aware.v = torch.nn.Parameter(x)
        cases: list[tuple[Scheme, dict[str, Any]]] = [(Plain(), {"sinks": x})]
        cases += [(scheme, {}) for scheme in (slopes, alibi, distance_aware)]
        for scheme, options in cases:
            for _ in range(2):
                output, expected = (
                    attend(q, k, v, scheme=scheme, backend=backend, **options) for backend in ("triton", "reference")
                )
                torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("scheme", ["plain", "rpr"])
def test_addresses_of_different_tensors_are_not_confused(scheme: str) -> None:
    """Triton compiles other loads for tensors that do not start at a multiple of 16 bytes."""
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH)
    tensors = [x.detach() for x in tensors]
    parameters = dict(layer.named_parameters())
    num_calls = cached_calls.num_calls()
    for i in range(len(tensors)):
        shifted = [shift(x) if i == j else x for j, x in enumerate(tensors)]
        attend(*shifted, scheme=layer, backend="triton")
        assert cached_calls.num_calls() == num_calls + i + 1
    num_calls = cached_calls.num_calls()
    for i, (name, parameter) in enumerate(parameters.items()):
        setattr(layer, name, torch.nn.Parameter(shift(parameter.detach())))
        attend(*tensors, scheme=layer, backend="triton")
        setattr(layer, name, parameter)
        assert cached_calls.num_calls() == num_calls + i + 1


def test_launches_are_not_shared_by_tensors_that_need_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles code for the dtypes of tensors, and for whether they start at a multiple of 16 bytes."""
    layouts: dict[int, dict[str, Any]] = {}
    launches = []  # kept, so that their ids are unique
    launch_kernel = BoundLaunch.__call__

    def check(bound: BoundLaunch, tensors: Sequence[Tensor | None], stream: int) -> None:
        by_name = bound.kernel_tensors(tensors)
        names = {name for _, name in bound.launch.tensor_params} & by_name.keys()
        layout = {name: (x.dtype, x.data_ptr() % 16) for name in names if (x := by_name[name]) is not None}
        launches.append(bound.launch)
        assert layouts.setdefault(id(bound.launch), layout) == layout
        launch_kernel(bound, tensors, stream)

    monkeypatch.setattr(BoundLaunch, "__call__", check)
    monkeypatch.setattr(cached_calls, "native_call", lambda *_: None)
    layer = RelativePositions(HEADS, WIDTH, k=3).to(DEVICE)
    q, k, v = (x.detach().half().requires_grad_() for x in inputs(SMALL_LENGTH, SMALL_LENGTH))
    parameters = {name: x.detach() for name, x in layer.named_parameters()}
    expected = attend(q, k, v, scheme=layer, backend="reference")
    for change in (Tensor.clone, shift, Tensor.half):
        for name, x in parameters.items():
            setattr(layer, name, torch.nn.Parameter(change(x)))
        for _ in range(2):
            output = attend(q, k, v, scheme=layer, backend="triton")
            torch.testing.assert_close(output, expected, rtol=2e-2, atol=5e-3)
            torch.autograd.grad(output.sum(), (q, k, v, *layer.parameters()))


def shift(x: Tensor) -> Tensor:
    """Return a copy that does not start at a multiple of 16 bytes."""
    flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:]
    return flat.view(x.shape).copy_(x)


def test_gradients_of_received_attention_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a backward pass does not contain their address."""
    alignments = []
    run_backward = Program.run_backward

    def record(program: Program, tensors: Any) -> Any:
        alignments.append(tensors[-1].data_ptr() % 16)
        return run_backward(program, tensors)

    monkeypatch.setattr(Program, "run_backward", record)
    monkeypatch.setattr(cached_calls, "native_call", lambda *_: None)
    tensors = inputs(LENGTH, LENGTH)
    grads = []
    for change in (Tensor.clone, shift):
        received = attend(*tensors, scheme=Plain(), backend="triton", return_received=True).received
        assert received is not None
        d_received = torch.randn(received.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        grads.append(torch.autograd.grad(received, tensors[:2], change(d_received)))
    assert alignments == [0, 0]
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)


def test_threads_may_add_calls_and_constants_at_the_same_time() -> None:
    errors: list[Exception] = []

    def compute(thread: int) -> None:
        try:
            for i in range(5000):
                position_constant(torch.full, (1,), (7 * i + thread) % 40, device=torch.device("cpu"))
                cached_calls._forms[thread, i % 400] = SimpleNamespace(calls={})  # type: ignore[assignment]
                cached_calls.num_calls()
                if i % 400 == 399:
                    cached_calls.clear_calls()
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=compute, args=(thread,)) for thread in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for x in threads:
            x.start()
        for x in threads:
            x.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_programs_for_other_layouts_are_not_added_to_native_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ calls Python in each backward pass whose saved tensors have other layouts."""
    calls: list[Any] = []
    added: list[Any] = []
    q, k, v = (x.detach() for x in inputs(SMALL_LENGTH, SMALL_LENGTH))
    attend(q, k, v, scheme=Plain(), scale=0.5, backend="triton")  # the self-tests of launches, which also attend
    monkeypatch.setattr(cached_calls, "native_call", lambda call, _: calls.append(call))
    monkeypatch.setattr(native, "to_native", lambda *_: "program")
    attend(q, k, v, scheme=Plain(), backend="triton")
    (call,) = calls
    output, lse = call.forward((q, k, v))
    compute_gradients = native.NativeGradients(None, call)
    for saved_q, num_added in ((q, 1), (q.mT.contiguous().mT, 1), (q, 2)):
        with torch.no_grad():
            compute_gradients(
                SimpleNamespace(add_backward=lambda *program: added.append(program)),
                [saved_q, k, v, output, lse],
                [torch.ones_like(output)],
                (True, True, True),
            )
        assert len(added) == num_added


#: The schemes with dense tables, whose packed batches are not cached.
DENSE = ("transformer-xl", "disentangled")

#: Options of packed batches.
PACKED_OPTIONS: dict[str, dict[str, Any]] = {
    "no-options": {},
    "causal-dropout": {"causal": True, "dropout": 0.3},
    "window-softcap": {"window": (6, 2), "softcap": 3.0},
    "received": {"return_received": True},
}


def packed_lengths(*lengths: int) -> Tensor:
    """Return cumulative lengths."""
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


@pytest.mark.parametrize("options", keep_short(PACKED_OPTIONS, "no-options", "received"))
@pytest.mark.parametrize("scheme", keep_short(SCHEMES, "plain", "distance-aware", "rpr", "transformer-xl"))
def test_packed_calls_give_the_same_bits_as_the_operators(
    scheme: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, tensors = SCHEMES[scheme]().to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH, batch=1)
    first = packed_lengths(5, SMALL_LENGTH - 5)
    others = packed_lengths(3, 4, SMALL_LENGTH - 7)
    is_usual = scheme in DENSE or (options == "received" and scheme in USUAL_RECEIVED)
    cached = []
    for cu_seqlens in (first, first, others):  # of as many tokens
        cached.append(run(tensors, layer, cu_seqlens=cu_seqlens, **PACKED_OPTIONS[options]))
        assert cached_calls.num_calls() >= (0 if is_usual else 1)
    num_calls = cached_calls.num_calls()
    run(tensors, layer, cu_seqlens=first, **PACKED_OPTIONS[options])
    assert cached_calls.num_calls() == num_calls
    monkeypatch.setattr(cached_calls, "call_key", lambda *_: None)
    for cu_seqlens, results in zip((first, first, others), cached, strict=True):
        for expected, actual in zip(
            run(tensors, layer, cu_seqlens=cu_seqlens, **PACKED_OPTIONS[options]), results, strict=True
        ):
            tolerance = TOLERANCE if scheme in OTHER_PRODUCTS else 0.0
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_cumulative_lengths_that_change_in_place_are_read_again(dtype: torch.dtype) -> None:
    layer, (q, k, v) = DistanceAware(HEADS).to(DEVICE), inputs(SMALL_LENGTH, SMALL_LENGTH, batch=1)
    cu_seqlens = packed_lengths(5, SMALL_LENGTH - 5).to(dtype)
    for _ in range(2):
        for middle in (5, 8):
            cu_seqlens[1] = middle
            output, expected = (
                attend(q, k, v, scheme=layer, backend=backend, cu_seqlens=cu_seqlens)
                for backend in ("triton", "reference")
            )
            torch.testing.assert_close(output, expected, rtol=5e-3, atol=5e-3)


def test_cumulative_lengths_of_inference_are_used_in_training() -> None:
    layer, (q, k, v) = Plain(), inputs(SMALL_LENGTH, SMALL_LENGTH, batch=1)
    cu_seqlens = packed_lengths(5, SMALL_LENGTH - 5)
    with torch.inference_mode():
        attend(q, k, v, scheme=layer, backend="triton", cu_seqlens=cu_seqlens)
    gradients = []
    for backend in ("triton", "triton", "reference"):
        output = attend(q, k, v, scheme=layer, backend=backend, cu_seqlens=cu_seqlens)
        gradients.append(torch.autograd.grad(output.square().sum(), (q, k, v)))
    for actual in gradients[:2]:
        torch.testing.assert_close(actual, gradients[2], rtol=5e-3, atol=5e-3)


@pytest.mark.skipif(DEVICE == "cuda", reason="the values of a tensor on a GPU are not checked")
def test_invalid_cumulative_lengths_are_refused_after_valid_ones() -> None:
    q, k, v = inputs(SMALL_LENGTH, SMALL_LENGTH, batch=1)
    attend(q, k, v, scheme=Plain(), backend="triton", cu_seqlens=packed_lengths(5, SMALL_LENGTH - 5))
    for lengths in ((5, SMALL_LENGTH), (5, 1)):
        with pytest.raises(ValueError, match=f"cu_seqlens must increase from 0 to .* {SMALL_LENGTH}"):
            attend(q, k, v, scheme=Plain(), backend="triton", cu_seqlens=packed_lengths(*lengths))
    with pytest.raises(ValueError, match="cu_seqlens cannot be combined with key_padding"):
        attend(
            q,
            k,
            v,
            scheme=Plain(),
            backend="triton",
            cu_seqlens=packed_lengths(5, SMALL_LENGTH - 5),
            key_padding=torch.ones(1, SMALL_LENGTH, dtype=torch.bool, device=DEVICE),
        )
