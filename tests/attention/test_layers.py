"""`MultiheadAttention` as a replacement of torch's module; padding, memory and caches of the layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import DecoderLayer, DistanceAware, EncoderLayer, MultiheadAttention, Plain, TransformerXL
from tests.attention.cases import SCHEMES, VARIANTS, make_scheme

DIM, HEADS = 16, 2


def layer(name: str, **options: Any) -> EncoderLayer:
    return (
        EncoderLayer(DIM, HEADS, scheme=make_scheme(name, HEADS, DIM // HEADS), dropout=0.0, **options).double().eval()
    )


@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch_multihead_attention(bias: bool) -> None:
    torch_layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True, bias=bias)
    headwise_layer = MultiheadAttention(DIM, HEADS, bias=bias)
    headwise_layer.load_state_dict(torch_layer.state_dict())
    query, key = torch.randn(3, 5, DIM), torch.randn(3, 7, DIM)
    padding = torch.arange(7) >= torch.tensor([7, 4, 6])[:, None]
    additive = torch.randn(5, 7)
    calls: list[dict[str, Any]] = [
        {},
        {"key_padding_mask": padding},
        {"key_padding_mask": torch.zeros(3, 7).masked_fill(padding, -torch.inf), "attn_mask": additive},
        {"attn_mask": torch.ones(5, 7, dtype=torch.bool).triu(1), "average_attn_weights": False},
        {"attn_mask": torch.rand(3 * HEADS, 5, 7).masked_fill(padding.repeat_interleave(2, 0)[:, None], -torch.inf)},
    ]
    for call in calls:
        for result, expected in zip(
            headwise_layer(query, key, key, **call), torch_layer(query, key, key, **call), strict=True
        ):
            torch.testing.assert_close(result, expected)
    output, weights = headwise_layer(query, key, key, need_weights=False)
    assert weights is None
    torch.testing.assert_close(output, torch_layer(query, key, key, need_weights=False)[0])
    unbatched = headwise_layer(query[0], key[0], key[0])
    torch.testing.assert_close(unbatched, torch_layer(query[0], key[0], key[0]))


def test_loads_torch_weights_of_unequal_widths() -> None:
    torch_layer = nn.MultiheadAttention(DIM, HEADS, batch_first=True, kdim=6, vdim=10)
    headwise_layer = MultiheadAttention(DIM, HEADS, kdim=6, vdim=10)
    headwise_layer.load_state_dict(torch_layer.state_dict())
    query, key, value = torch.randn(2, 5, DIM), torch.randn(2, 7, 6), torch.randn(2, 7, 10)
    torch.testing.assert_close(headwise_layer(query, key, value), torch_layer(query, key, value))


@pytest.mark.parametrize("training", [True, False])
def test_inside_torch_encoder_layer(training: bool) -> None:
    torch_layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True, dropout=0.0).train(training)
    x, padding = torch.randn(2, 5, DIM), torch.arange(5) >= torch.tensor([5, 3])[:, None]
    expected = torch_layer(x, src_key_padding_mask=padding)
    attention = MultiheadAttention(DIM, HEADS)
    attention.load_state_dict(torch_layer.self_attn.state_dict())
    torch_layer.self_attn = attention  # type: ignore[assignment]
    torch.testing.assert_close(torch_layer(x, src_key_padding_mask=padding)[~padding], expected[~padding])
    encoder = nn.TransformerEncoder(torch_layer, num_layers=1, enable_nested_tensor=False).train(training)
    torch.testing.assert_close(encoder(x, src_key_padding_mask=padding)[~padding], expected[~padding])


def test_tener_has_no_key_projection() -> None:
    assert layer("tener").attention.k_proj is None
    assert layer("tener-released").attention.k_proj is not None


@pytest.mark.parametrize("name", VARIANTS)
def test_padding_does_not_change_results(name: str) -> None:
    """A sequence gives the same states with and without padding."""
    model = layer(name)
    x = torch.randn(1, 5, DIM, dtype=torch.float64)
    padded = torch.cat([x, torch.randn(1, 3, DIM, dtype=torch.float64)], dim=1)
    for real in (torch.tensor([5]), torch.arange(8)[None] < 5):
        torch.testing.assert_close(model(padded, key_padding=real)[:, :5], model(x))


@pytest.mark.parametrize("name", SCHEMES)
def test_segments_with_memory_equal_the_whole_sequence(name: str) -> None:
    """Transformer-XL's recurrence: the second segment, with the first as memory, equals that part of the whole."""
    model = layer(name)
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    whole = model(x, causal=True)
    torch.testing.assert_close(model(x[:, :4], causal=True), whole[:, :4])
    torch.testing.assert_close(model(x[:, 4:], causal=True, memory=x[:, :4]), whole[:, 4:])


def test_memory_gets_no_gradient() -> None:
    model = EncoderLayer(DIM, HEADS, scheme=TransformerXL(HEADS, DIM // HEADS))
    x, memory = torch.randn(1, 4, DIM, requires_grad=True), torch.randn(1, 3, DIM, requires_grad=True)
    model(x, memory=memory, causal=True).sum().backward()
    assert x.grad is not None
    assert memory.grad is None


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("name", SCHEMES)
def test_decoding_with_a_cache_equals_decoding_without(name: str, norm_first: bool) -> None:
    scheme = make_scheme(name, HEADS, DIM // HEADS)
    model = DecoderLayer(DIM, HEADS, scheme=scheme, norm_first=norm_first).double().eval()
    x, encoded = torch.randn(2, 6, DIM, dtype=torch.float64), torch.randn(2, 4, DIM, dtype=torch.float64)
    lengths = torch.tensor([4, 3])
    whole = model(x, encoded, encoded_padding=lengths)
    past: list[Tensor] = []

    def cache(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        past[:] = [torch.cat([old, new], dim=2) for old, new in zip(past, (k, v), strict=True)] if past else [k, v]
        return past[0], past[1]

    for step in (slice(0, 2), slice(2, 3), slice(3, 6)):
        torch.testing.assert_close(model(x[:, step], encoded, encoded_padding=lengths, cache=cache), whole[:, step])


def test_distance_aware_is_symmetric_and_rpr_is_not() -> None:
    x = torch.randn(2, 7, DIM, dtype=torch.float64)
    symmetric, directed = layer("distance-aware"), layer("rpr")
    torch.testing.assert_close(symmetric(x.flip(1)).mean(1), symmetric(x).mean(1))
    assert not torch.allclose(directed(x.flip(1)).mean(1), directed(x).mean(1))


def test_distance_aware_with_zero_w_and_no_relu_is_plain_attention() -> None:
    q = torch.randn(2, 5, DIM)
    distance = MultiheadAttention(DIM, HEADS, scheme=DistanceAware(HEADS, rectify=False, w_std=0.0))
    plain = MultiheadAttention(DIM, HEADS, scheme=Plain())
    plain.load_state_dict({k: v for k, v in distance.state_dict().items() if "scheme" not in k})
    torch.testing.assert_close(distance(q, q, q), plain(q, q, q))


def test_need_received() -> None:
    attention = MultiheadAttention(DIM, HEADS, scheme=DistanceAware(HEADS))
    x = torch.randn(2, 5, DIM)
    _, weights, received = attention(x, x, x, average_attn_weights=False, need_received=True)
    torch.testing.assert_close(received, weights.sum(dim=2))
