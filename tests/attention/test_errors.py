"""Errors for invalid arguments name the argument, the expected and the actual value; choice of backends."""

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise import (
    DecoderLayer,
    DistanceAware,
    EncoderLayer,
    MultiheadAttention,
    Plain,
    RelativePositions,
    Scheme,
    Tener,
    TransformerXL,
    attend,
    explain,
)
from headwise.attention.triton_backend import operator
from tests.attention.cases import RETURN_ALL

X = torch.randn(2, 4, 5, 8)
ANYTHING: dict[str, Any] = {"half": 1.5, "log": "log", "late": "late", "4": "4"}  # values that a type checker rejects


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": X[0]}, ValueError, r"q must have 4 dimensions .* got shape \(4, 5, 8\)"),
        ({"k": "keys"}, TypeError, "k must be a tensor, got str"),
        ({"k": X[:1]}, ValueError, "same batch size, got 2, 1 and 2"),
        ({"v": X[:, :, :4]}, ValueError, r"k and v must have the same heads and length, got \(4, 5\) and \(4, 4\)"),
        ({"k": X[..., :4]}, ValueError, "q and k must have the same width, got 8 and 4"),
        ({"k": X[:, :3], "v": X[:, :3]}, ValueError, "q's heads must be a multiple of k's, got 4 and 3"),
        ({"k": X.half()}, TypeError, "q, k and v must have the same dtype, got torch.float32, torch.float16"),
        ({"q": X.long()}, TypeError, "q must be floating point, got torch.int64"),
        ({"scheme": Plain}, TypeError, "an instance, not the class"),
        ({"scheme": "plain"}, TypeError, "scheme must be a headwise Scheme"),
        ({"scheme": DistanceAware(heads=8)}, ValueError, "scheme has heads=8 but q has 4 heads"),
        ({"scheme": Tener(4, 16)}, ValueError, "scheme has head_dim=16 but q's heads are 8 wide"),
        (
            {"scheme": RelativePositions(4, 8, k=1), "v": X[..., :4]},
            ValueError,
            r"returned value_table of shape \(1, 3, 8\); expected \(1 or H, any, 4\)",
        ),
        ({"key_padding": torch.ones(2, 5)}, TypeError, "key_padding must be boolean .* or integer lengths"),
        ({"key_padding": torch.ones(2, 4).bool()}, ValueError, r"key_padding must be \(2, 5\).*got shape \(2, 4\)"),
        ({"key_padding": torch.tensor([5, 6])}, ValueError, r"key_padding lengths must lie between 0 and 5.*\[5, 6\]"),
        ({"key_padding": torch.tensor([5])}, ValueError, r"key_padding lengths must be \(2,\)"),
        ({"query_padding": torch.tensor([-1, 5])}, ValueError, "query_padding lengths must lie between 0 and 5"),
        ({"mask": torch.ones(5, 5)}, TypeError, "mask must be boolean .* position_bias"),
        ({"mask": torch.ones(2, 5, 5).bool()}, ValueError, r"mask must be broadcastable to \(2, 4, 5, 5\)"),
        (
            {"mask": torch.ones(2, 5).long()},
            TypeError,
            r"Hugging Face's attention_mask .* key_padding=attention_mask.bool",
        ),
        ({"key_padding": torch.ones(2, 5).long()}, TypeError, r"key_padding=attention_mask\.bool\(\)"),
        ({"position_bias": torch.ones(5, 5).bool()}, TypeError, "position_bias must be floating point"),
        ({"position_bias": torch.ones(3, 1, 5, 5)}, ValueError, "position_bias must be"),
        ({"offset": -1}, ValueError, "offset, .* must be 0 or more, got -1"),
        ({"offset": 1.5}, TypeError, "offset must be an int, got 1.5"),
        ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": "0.1"}, TypeError, "dropout must be a number, got '0.1'"),
        ({"scale": 0.0}, ValueError, "scale must be above 0"),
        ({"scale": "1"}, TypeError, "scale must be a number, got '1'"),
        ({"softcap": [5.0]}, TypeError, r"softcap must be a number, got \[5.0\]"),
        ({"scale": torch.tensor(0.5, requires_grad=True)}, TypeError, "scale gets no gradient; .* multiply q by it"),
        ({"softcap": torch.tensor(5.0, requires_grad=True)}, TypeError, "softcap gets no gradient"),
        ({"scheme": X}, TypeError, r"scheme must be a headwise Scheme such as Plain\(\), got Tensor$"),
        ({"scheme": Scheme()}, NotImplementedError, r"Scheme must define forward\(q, k, \*, offset=0\)"),
        (
            {"backend": "flash"},
            ValueError,
            "backend must be one of auto, .*, triton; got 'flash'",
        ),
    ],
)
def test_invalid_arguments_of_attend(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"q": X, "k": X, "v": X, "scheme": Plain()} | changes
    with pytest.raises(error, match=message):
        attend(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


@pytest.mark.parametrize(
    ("construct", "error", "message"),
    [
        (lambda: RelativePositions(4, 8, k=-1), ValueError, "k, the clipping distance, must be 0 or more, got -1"),
        (lambda: RelativePositions(4, 8, k=ANYTHING["half"]), TypeError, "k must be an int"),
        (lambda: RelativePositions(0, 8, k=1), ValueError, "heads must be at least 1, got 0"),
        (lambda: RelativePositions(4, 8, k=1, std=-1.0), ValueError, "std must be 0 or more"),
        (
            lambda: DistanceAware(4, mapping=ANYTHING["log"]),
            ValueError,
            "mapping must be one of .* got 'log'",
        ),
        (lambda: DistanceAware(4, adjust=ANYTHING["late"]), ValueError, "adjust must be one of early-multiply"),
        (lambda: DistanceAware(ANYTHING["4"]), TypeError, "heads must be an int, got '4'"),
        (lambda: DistanceAware(4, w_std=-0.1), ValueError, "w_std must be 0 or more"),
        (lambda: Tener(4, 7), ValueError, "head_dim must be even"),
        (lambda: TransformerXL(3, 5), ValueError, "dim, .* must be even, got 15"),
        (lambda: MultiheadAttention(10, 4), ValueError, "embed_dim must be a multiple of num_heads"),
        (lambda: MultiheadAttention(8, 4, key_heads=3), ValueError, "num_heads must be a multiple of key_heads"),
        (lambda: MultiheadAttention(8, 4, scheme=DistanceAware(2)), ValueError, "scheme has heads=2"),
        (lambda: MultiheadAttention(8, 4, scheme=ANYTHING["4"]), TypeError, "scheme must be a headwise Scheme"),
        (lambda: MultiheadAttention(8, 4, dropout=ANYTHING["half"]), ValueError, "dropout must be .* got 1.5"),
        (
            lambda: MultiheadAttention(8, 4, backend=ANYTHING["4"]),
            ValueError,
            "backend must be one of auto, .* got '4'",
        ),
        (lambda: EncoderLayer(8, 4, feedforward=0), ValueError, "feedforward must be at least 1, got 0"),
        (lambda: MultiheadAttention(8, 4, scheme=Tener(4, 2), kdim=6), ValueError, "keys must be .* 8 wide, got 6"),
    ],
)
def test_invalid_arguments_of_constructors(construct: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        construct()


def test_invalid_masks_of_layers() -> None:
    x = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="cu_seqlens needs need_weights=False"):
        MultiheadAttention(8, 4)(x[:1], x[:1], x[:1], cu_seqlens=[0, 2, 5])
    with pytest.raises(TypeError, match=r"attn_mask must be boolean .* got torch.uint8"):
        MultiheadAttention(8, 4)(x, x, x, attn_mask=torch.zeros(5, 5, dtype=torch.uint8))
    with pytest.raises(ValueError, match="key_padding must be a mask of all tokens so far"):
        DecoderLayer(8, 4)(x, x, key_padding=torch.tensor([5, 3]), cache=lambda k, v: (k, v))


def test_queries_without_a_batch_need_keys_without_a_batch() -> None:
    x = torch.randn(5, 8)
    with pytest.raises(ValueError, match=r"key must be \(length, width\) like query, got shape \(1, 5, 8\)"):
        MultiheadAttention(8, 4)(x, x[None], x[None])


def test_padding_of_queries_must_be_boolean() -> None:
    """A bias for a whole query would not change its softmax."""
    x = torch.randn(2, 5, 8)
    with pytest.raises(TypeError, match=r"query_padding_mask must be boolean \(True: padding\), got torch.float32"):
        MultiheadAttention(8, 2)(x, x, x, query_padding_mask=torch.zeros(2, 5))


def test_explicit_backend_never_falls_back() -> None:
    with pytest.raises(ValueError, match="backend='sdpa' cannot compute this: SDPA cannot add"):
        attend(X, X, X, scheme=DistanceAware(4), backend="sdpa")
    for option in RETURN_ALL:
        options: dict[str, Any] = {"scheme": Plain(), option: True}
        with pytest.raises(ValueError, match="no received attention, weight norms, log-sum-exps or weights"):
            attend(X, X, X, backend="sdpa", **options)
        assert explain(X, X, X, **options).backend == "reference"
    assert explain(X, X, X, scheme=Plain(), backend="blockwise").backend == "blockwise"


def test_explain_returns_backend_and_reason() -> None:
    long = torch.empty(1, 4, 4096, 8)
    assert explain(X, X, X, scheme=Plain()).backend == "sdpa"
    assert explain(X, X, X, scheme=DistanceAware(4)).backend == "reference"
    assert explain(long, long, long, scheme=DistanceAware(4)).backend == "blockwise"
    assert "too large to store" in str(explain(long, long, long, scheme=DistanceAware(4)))


def test_integers_of_numpy_are_accepted() -> None:
    expected = attend(X[:, :, :3], X, X, scheme=Plain(), window=(1, 0), offset=2)
    window: Any = (np.int64(1), np.int32(0))
    result = attend(X[:, :, :3], X, X, scheme=Plain(), window=window, offset=np.int64(2))  # type: ignore[call-overload]
    torch.testing.assert_close(result, expected)


def test_explain_names_itself() -> None:
    with pytest.raises(TypeError, match=r"explain\(\) got an unexpected keyword argument 'causual'"):
        explain(X, X, X, scheme=Plain(), causual=True)
    with pytest.raises(TypeError, match=r"explain\(\) missing 1 required keyword-only argument: 'scheme'"):
        explain(X, X, X)  # type: ignore[call-arg]


@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (5, 5), (4, 5, 5), (4, 1, 1), (2, 1, 5, 5)], ids=str)
def test_masks_and_biases_broadcast_as_in_torch(shape: tuple[int, ...]) -> None:
    bias, mask = torch.randn(shape), torch.ones(shape, dtype=torch.bool)
    expected = attend(X, X, X, scheme=Plain(), position_bias=bias.expand(2, 4, 5, 5), mask=mask.expand(2, 4, 5, 5))
    torch.testing.assert_close(attend(X, X, X, scheme=Plain(), position_bias=bias, mask=mask), expected)


def test_explain_names_the_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("headwise._compat.is_interpreted", lambda kernel: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    operator._missing_requirement.cache_clear()
    try:
        with FakeTensorMode(), torch.device("cuda"):
            inputs = [torch.empty(1, 2, length, 8) for length in (64, 2**14)]
            choices = [explain(x, x, x, scheme=DistanceAware(2)) for x in inputs]
    finally:
        operator._missing_requirement.cache_clear()
    assert [choice.backend for choice in choices] == ["reference", "blockwise"]
    for choice in choices:
        assert "need a GPU of compute capability 8.0 or newer, and Tesla T4 has 7.5" in choice.reason
