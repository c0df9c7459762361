"""Every family: a fused model gives the outputs and gradients of the original, in float64."""

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import headwise as hw
from headwise.integrations.fusion import families
from tests.integrations.fusion.cases import CASES, Case, build_model, use_eager_attention

TOLERANCE: dict[str, Any] = {"atol": 1e-8, "rtol": 1e-8}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())

#: One case of each kind of scores, and in the long form all of them.
SHORT_CASES = ("t5", "deberta-v2", "xlnet", "wav2vec2-bert", "parakeet")
each_kind = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in SHORT_CASES else pytest.mark.long)
        for name, case in CASES.items()
    ],
)


def run(model: Any, case: Case, length: int = 11, padding: bool = True) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the outputs at real positions, and the gradients of all parameters."""
    torch.manual_seed(1)
    real, batch = case.batch(model.config, length, padding)
    model.zero_grad()
    output = model(**batch)[0]
    output = output[real]
    (output * torch.randn_like(output)).sum().backward()
    return output.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def check_same(actual: tuple[Tensor, dict[str, Any]], expected: tuple[Tensor, dict[str, Any]]) -> None:
    torch.testing.assert_close(actual[0], expected[0], **TOLERANCE)
    assert actual[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        if gradient is None:
            assert actual[1][name] is None, f"{name} has a gradient"
        else:
            torch.testing.assert_close(actual[1][name], gradient, **TOLERANCE, msg=partial("{}: {}".format, name))


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES.values()} >= families().keys()


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("length", [1, 11, 32])
@each_case
def test_outputs_and_gradients_are_those_of_the_model(
    case: Case, length: int, padding: bool, training: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "blockwise":
        monkeypatch.setattr(sys.modules["headwise.attention.attend"], "MAX_REFERENCE_PAIRS_CPU", 0)
    model = build_model(case).train(training)
    expected = run(model, case, length, padding)
    assert hw.fuse_attention(model, verbose=False) is model
    assert model.training is training
    check_same(run(model, case, length, padding), expected)
    if length > 1:
        for part in case.positions:
            gradients = [g for name, g in expected[1].items() if part in name and g is not None]
            assert gradients, part
            assert all(bool(g.abs().max() > 1e-6) for g in gradients), part


@each_case
def test_padding_has_the_layout_of_cached_calls(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each call on a GPU is checked and planned again, which takes longer than its kernels."""
    module = sys.modules["headwise.integrations.hf_attention"]
    masks, attend = [], module.attend

    def record(*args: Any, **options: Any) -> Any:
        masks.append(options["key_padding"])
        return attend(*args, **options)

    model = hw.fuse_attention(build_model(case), verbose=False)
    monkeypatch.setattr(module, "attend", record)
    run(model, case)
    assert masks
    assert all(mask is None or (mask.is_contiguous() and mask.dtype == torch.bool) for mask in masks)


@each_kind
def test_parameters_are_the_same_objects_and_unfuse_restores_the_layers(case: Case) -> None:
    model = build_model(case)
    expected, text = run(model, case), str(model)
    parameters, state = dict(model.named_parameters()), {name: x.data_ptr() for name, x in model.state_dict().items()}
    hw.fuse_attention(model, verbose=False)
    assert [layers.family for layers in hw.fusion_report(model).layers] == [case.family]
    assert str(model) != text
    fused_parameters = dict(model.named_parameters())
    assert fused_parameters.keys() == parameters.keys()
    assert all(fused_parameters[name] is parameter for name, parameter in parameters.items())
    assert {name: x.data_ptr() for name, x in model.state_dict().items()} == state
    hw.unfuse_attention(model)
    assert str(model) == text
    actual = run(model, case)
    assert torch.equal(actual[0], expected[0])


@each_kind
def test_fused_models_are_copied_saved_and_loaded_as_usual(case: Case, tmp_path: Path) -> None:
    model = build_model(case)
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        next(model.parameters()).zero_()
    check_same(run(copied, case), expected)
    copied.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert not hw.fusion_report(loaded).layers
    saved, state = load_file(tmp_path / "model.safetensors"), copied.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in saved.items())
    other = hw.fuse_attention(build_model(case), verbose=False)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(saved, strict=False)  # tied weights are saved once
    check_same(run(other, case), expected)


@each_kind
def test_gradient_checkpointing(case: Case) -> None:
    model = build_model(case).train()
    if not model.supports_gradient_checkpointing:
        pytest.skip("the model does not support gradient checkpointing")
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check_same(run(model, case), expected)


@pytest.mark.long  # tests/attention compiles layers in the short form
@pytest.mark.parametrize("name", CASES)
def test_torch_compile(name: str) -> None:
    case = CASES[name]
    if case.why_not_compiled:
        pytest.skip(case.why_not_compiled)
    model = build_model(case)
    expected = run(model, case)
    hw.fuse_attention(model, verbose=False)
    torch.compiler.reset()
    (layers,) = hw.fusion_report(model).layers
    for part in [model] if case.compiles_whole else map(model.get_submodule, layers.names):
        part.compile(backend="eager", fullgraph=True)
    check_same(run(model, case), expected)


@pytest.mark.parametrize("name", ["deberta", "deberta-v2", "sew-d"])
def test_compiled_layers_have_no_graph_breaks(name: str) -> None:
    """`fullgraph=True` would allow to read scalars from tensors."""
    from torch._dynamo.utils import counters

    case = CASES[name]
    model = build_model(case).eval()
    hw.fuse_attention(model, verbose=False)
    (layers,) = hw.fusion_report(model).layers
    torch.compiler.reset()
    counters.clear()
    model.get_submodule(layers.names[0]).compile(backend="eager")
    run(model, case)
    assert counters["frames"]["ok"] > 0
    assert not counters["graph_break"]


def to_float32(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with audio and memories in float32."""

    def convert(x: Any) -> Any:
        if isinstance(x, list):
            return [convert(element) for element in x]
        return x.float() if x.dtype == torch.float64 else x

    return {name: convert(x) for name, x in batch.items()}


@each_kind
def test_autocast(case: Case) -> None:
    if case.why_no_autocast:
        pytest.skip(case.why_no_autocast)
    model = build_model(case).float().eval()
    torch.manual_seed(1)
    batches = [case.batch(model.config, 11, True) for _ in range(case.autocast_batches)]

    def outputs() -> Tensor:
        return torch.cat([model(**to_float32(batch))[0][real] for real, batch in batches])

    with torch.autocast("cpu", torch.bfloat16):
        expected = outputs()
        hw.fuse_attention(model, verbose=False)
        actual = outputs()
    exact = outputs()
    assert actual.dtype == expected.dtype
    error, own_error = ((x - exact).abs().mean() for x in (actual, expected))
    assert error <= 2 * own_error


@each_case
def test_attention_weights_are_those_of_the_model(case: Case) -> None:
    if case.why_no_weights:
        pytest.skip(case.why_no_weights)
    model = build_model(case).eval()
    torch.manual_seed(1)
    _, batch = case.batch(model.config, 11, False)
    use_eager_attention(model)
    expected = model(**batch, output_attentions=True)
    hw.fuse_attention(model, verbose=False)
    actual = model(**batch, output_attentions=True)
    names = [name for name in expected if name.endswith("attentions")]
    assert names
    for name in names:
        torch.testing.assert_close(actual[name], expected[name], **TOLERANCE)
