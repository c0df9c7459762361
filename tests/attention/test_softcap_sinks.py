"""Softcap and sinks against transformers' Gemma 2 and GPT-OSS, and gradients only for what needs them."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from headwise import Plain, attend, explain
from tests.attention.cases import SCHEMES, make_scheme
from tests.short_form import choose_size, keep_short


def test_softcap_is_that_of_gemma_2() -> None:
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    q, k, v = (torch.randn(2, heads, 6, 8) for heads in (4, 2, 2))
    module = SimpleNamespace(num_key_value_groups=2, head_dim=8, training=False)
    expected, _ = gemma.eager_attention_forward(module, q, k, v, None, scaling=0.7, softcap=1.5)
    for backend in ("reference", "blockwise", "auto"):
        output = attend(q, k, v, scheme=Plain(), scale=0.7, softcap=1.5, backend=backend)
        torch.testing.assert_close(output.transpose(1, 2), expected)


def test_sinks_are_those_of_gpt_oss() -> None:
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    q, k, v = (torch.randn(2, heads, 6, 8) for heads in (4, 2, 2))
    sinks = torch.randn(4, requires_grad=True)
    module = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    expected, _ = gpt_oss.eager_attention_forward(module, q, k, v, None, scaling=0.7)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), sinks)
    for backend in ("reference", "blockwise", "auto"):
        output = attend(q, k, v, scheme=Plain(), scale=0.7, sinks=sinks, backend=backend)
        torch.testing.assert_close(output.transpose(1, 2), expected)
        torch.testing.assert_close(torch.autograd.grad(output.square().sum(), sinks)[0], expected_grad)


def test_queries_without_keys_have_only_the_sink() -> None:
    q = torch.randn(1, 2, 3, 4, requires_grad=True)
    sinks = torch.tensor([0.5, -1.0], requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    for backend in ("reference", "blockwise"):
        result = attend(
            q,
            q,
            q,
            scheme=Plain(),
            sinks=sinks,
            mask=mask,
            return_lse=True,
            backend=backend,
        )
        assert result.lse is not None
        assert not result.output[:, :, 1].any()
        torch.testing.assert_close(result.lse[0, :, 1], sinks)
        grads = torch.autograd.grad(result.output.sum() + result.lse.sum(), [q, sinks])
        assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softcap": 0.0}, "softcap must be above 0 and finite"),
        ({"sinks": torch.zeros(3)}, r"sinks must be one floating-point logit per query head, \(2,\)"),
        ({"sinks": torch.zeros(2).long()}, "sinks must be one floating-point logit"),
    ],
)
def test_invalid_softcap_and_sinks(options: dict[str, Any], message: str) -> None:
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=message):
        attend(x, x, x, scheme=Plain(), **options)


def test_sdpa_is_not_used_with_softcap_sinks_or_a_window() -> None:
    x = torch.randn(1, 2, 3, 4)
    for options in ({"softcap": 1.0}, {"sinks": torch.zeros(2)}, {"window": (1, 1)}):
        assert explain(x, x, x, scheme=Plain(), **options).backend == "reference"


@pytest.mark.short_form("values")
@pytest.mark.parametrize("backend", ["blockwise", "triton"])
@pytest.mark.parametrize("name", keep_short(SCHEMES, "distance-aware", "rpr", "transformer-xl", "t5-bias"))
def test_gradients_of_each_subset_of_inputs(name: str, backend: Any) -> None:
    """Frozen inputs or parameters change no gradient of the others."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if backend == "triton":
        pytest.importorskip("triton")
    dtype = torch.float32 if backend == "triton" else torch.float64
    heads, n = choose_size(short=(1, 36), long=(2, 70))  # two or three tiles, the last one incomplete
    scheme = make_scheme(name, heads, 32, dtype=dtype).to(device)
    inputs = [torch.randn(1, heads, n, 32, dtype=dtype, device=device) for _ in range(3)]
    bias = torch.randn(1, heads, n, n, dtype=dtype, device=device)
    sinks = torch.randn(heads, dtype=dtype, device=device)

    def run(trainable: set[str]) -> dict[str, Tensor]:
        leaves = dict(zip(("q", "k", "v", "bias", "sinks"), (*inputs, bias, sinks), strict=True))
        leaves = {name: x.detach().clone().requires_grad_(name in trainable) for name, x in leaves.items()}
        scheme.requires_grad_("scheme" in trainable)
        options: dict[str, Any] = {"position_bias": leaves["bias"], "sinks": leaves["sinks"]}
        output = attend(leaves["q"], leaves["k"], leaves["v"], scheme=scheme, backend=backend, **options)
        leaves |= {f"scheme.{name}": p for name, p in scheme.named_parameters()}
        needed = {name: x for name, x in leaves.items() if x.requires_grad}
        return dict(zip(needed, torch.autograd.grad(output.square().sum(), list(needed.values())), strict=True))

    names = {"q", "k", "v", "bias", "sinks"} | ({"scheme"} if list(scheme.parameters()) else set())
    everything = run(names)
    for trainable in ({"q"}, {"k"}, {"v"}, {"bias"}, {"sinks"}, {"scheme"} & names, names - {"q"}, names - {"k", "v"}):
        if trainable:
            for leaf, grad in run(trainable).items():
                torch.testing.assert_close(grad, everything[leaf], atol=1e-5, rtol=1e-4, msg=f"{trainable}: {leaf}")


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        ("qkv", {"bwd_dq_kernel", "bwd_dkv_kernel"}),
        ("q", {"bwd_dq_kernel"}),
        ("v", {"bwd_dkv_kernel"}),
        ("k", {"bwd_received_kernel", "bwd_dkv_kernel"}),  # delta, then dk
    ],
)
def test_frozen_inputs_launch_no_kernels(trainable: str, expected: set[str]) -> None:
    pytest.importorskip("triton")
    from headwise.attention.triton_backend.launch import Launch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (torch.randn(1, 1, 70, 32, device=device, requires_grad=name in trainable) for name in "qkv")
    output = attend(q, k, v, scheme=Plain(), backend="triton")
    launched = []
    allocated: set[str] = set()
    original = Launch.__call__

    def call(self: Launch, tensors: dict[str, Any]) -> None:
        launched.append(self.kernel.fn.__name__)
        allocated.update(name for name in "qkv" if tensors[f"d{name}_ptr"] is not None)
        original(self, tensors)

    with mock.patch.object(Launch, "__call__", call):
        output.sum().backward()
    assert set(launched) == expected
    assert allocated == set(trainable), "gradients that are not needed take no memory"
