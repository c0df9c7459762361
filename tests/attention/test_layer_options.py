"""torch's arguments and state dicts of `MultiheadAttention`; masks, caches and packed sequences of the layers."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import DecoderLayer, DistanceAware, EncoderLayer, MultiheadAttention, torch_state_dict
from tests.attention.cases import SCHEMES, make_scheme

DIM, HEADS = 16, 2


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"kdim": 6, "vdim": 10}, {"add_bias_kv": True}, {"add_zero_attn": True, "add_bias_kv": True}],
    ids=str,
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_arguments_and_state_dicts_both_ways(options: dict[str, Any], batch_first: bool) -> None:
    theirs = nn.MultiheadAttention(embed_dim=DIM, num_heads=HEADS, batch_first=batch_first, **options)
    ours = MultiheadAttention(embed_dim=DIM, num_heads=HEADS, batch_first=batch_first, **options)
    theirs.load_state_dict(ours.torch_state_dict())
    again = MultiheadAttention(DIM, HEADS, batch_first=batch_first, **options)
    again.load_state_dict(theirs.state_dict())
    query, key, value = (
        torch.randn(2, length, width)
        for length, width in ((5, DIM), (7, options.get("kdim", DIM)), (7, options.get("vdim", DIM)))
    )
    inputs = [query, key, value] if batch_first else [x.transpose(0, 1) for x in (query, key, value)]
    padding = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    calls: list[dict[str, Any]] = [
        {},
        {"key_padding_mask": padding},
        {"attn_mask": torch.randn(5, 7), "average_attn_weights": False},
        {"attn_mask": torch.rand(5, 7) > 0.7, "need_weights": False},
    ]
    for call in calls:
        expected = theirs(*inputs, **call)
        torch.testing.assert_close(ours(*inputs, **call), expected)
        torch.testing.assert_close(again(*inputs, **call), expected)


class Translator(nn.Module):
    """A model of torch's modules or of ours, in which some are nested and some weights have other names."""

    def __init__(self, attention: nn.Module, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, DIM)
        self.attentions = nn.ModuleDict({"first": attention})
        self.encoder = nn.ModuleList([encoder])
        self.decoder = decoder
        self.norm = nn.BatchNorm1d(DIM)

    def embed_both(self) -> tuple[Tensor, Tensor]:
        source, target = self.embed(torch.arange(6).view(2, 3)), self.embed(torch.arange(8).view(2, 4))
        return self.attentions["first"](source, source, source)[0], target


def test_state_dicts_of_whole_models_both_ways() -> None:
    layer: dict[str, Any] = {"dim_feedforward": 24, "dropout": 0.0, "batch_first": True, "activation": "gelu"}
    theirs = Translator(
        nn.MultiheadAttention(DIM, HEADS, batch_first=True, add_bias_kv=True),
        nn.TransformerEncoderLayer(DIM, HEADS, norm_first=True, **layer),
        nn.TransformerDecoderLayer(DIM, HEADS, **layer),
    )
    options: dict[str, Any] = {"feedforward": 24, "dropout": 0.0, "activation": "gelu"}
    ours = Translator(
        MultiheadAttention(DIM, HEADS, add_bias_kv=True),
        EncoderLayer(DIM, HEADS, norm_first=True, **options),
        DecoderLayer(DIM, HEADS, **options),
    )
    state_dict = ours.state_dict()
    assert torch_state_dict(ours).keys() == theirs.state_dict().keys()
    assert ours.state_dict().keys() == state_dict.keys(), "the model itself is not changed"

    def run_both() -> tuple[Tensor, Tensor]:
        source, target = theirs.embed_both()
        future = torch.ones(4, 4, dtype=torch.bool).triu(1)
        expected = theirs.decoder(target, theirs.encoder[0](source), tgt_mask=future)
        source, target = ours.embed_both()
        return ours.decoder(target, ours.encoder[0](source)), expected

    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(*run_both())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    theirs.load_state_dict(torch_state_dict(ours))
    torch.testing.assert_close(*run_both())
    ours.load_state_dict(state_dict)  # our own names


def test_torch_models_with_our_attention_inside() -> None:
    theirs, model = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, HEADS, dropout=0.0, batch_first=True), 2).eval()
        for _ in range(2)
    )
    for layer in model.layers:
        layer.self_attn = MultiheadAttention(DIM, HEADS)
    theirs.load_state_dict(torch_state_dict(model))
    x = torch.randn(2, 5, DIM)
    torch.testing.assert_close(theirs(x), model(x))
    model.layers[1].self_attn = MultiheadAttention(DIM, HEADS, scheme=DistanceAware(HEADS))
    with pytest.raises(ValueError, match=r"layers\.1\.self_attn: torch\.nn\.MultiheadAttention has no position scheme"):
        torch_state_dict(model)


def test_added_keys_are_visible_to_causal_queries() -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, batch_first=True)
    ours = MultiheadAttention(DIM, HEADS, add_bias_kv=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, DIM)
    is_masked = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=is_masked)
    torch.testing.assert_close(ours(x, x, x, is_causal=True), expected)


def test_torch_cannot_have_all_weights() -> None:
    layer = MultiheadAttention(DIM, HEADS, scheme=DistanceAware(HEADS), sinks=True)
    with pytest.raises(ValueError, match="has no position scheme and no sinks"):
        layer.torch_state_dict()
    with pytest.raises(ValueError, match=r"need the scheme Plain\(\).* got DistanceAware"):
        MultiheadAttention(DIM, HEADS, scheme=DistanceAware(HEADS), add_bias_kv=True)


class KeyValueCache:
    """Returns all keys and values so far."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def __call__(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.pairs.append((k, v))
        keys, values = zip(*self.pairs, strict=True)
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)


@pytest.mark.parametrize("name", SCHEMES)
def test_encoder_layer_with_a_cache(name: str) -> None:
    layer = EncoderLayer(DIM, HEADS, scheme=make_scheme(name, HEADS, DIM // HEADS), dropout=0.0).double()
    x = torch.randn(2, 6, DIM, dtype=torch.float64)
    is_real = torch.arange(6) >= torch.tensor([0, 2])[:, None]  # left padding
    expected = layer(x, causal=True, window=(3, 0), key_padding=is_real)
    cache = KeyValueCache()
    steps = [
        layer(x[:, a:b], causal=True, window=(3, 0), key_padding=is_real[:, :b], cache=cache)
        for a, b in ((0, 3), (3, 4), (4, 6))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)
    with pytest.raises(ValueError, match="memory cannot be combined with a cache"):
        layer(x, memory=x, cache=cache)


@pytest.mark.parametrize("name", SCHEMES)
def test_packed_layers_equal_separate_sequences(name: str) -> None:
    scheme, cross = (make_scheme(name, HEADS, DIM // HEADS) for _ in range(2))
    encoder = EncoderLayer(DIM, HEADS, scheme=scheme, dropout=0.0, sinks=True, softcap=5.0).double()
    decoder = DecoderLayer(DIM, HEADS, scheme=cross, dropout=0.0).double()
    source_bounds, target_bounds = [0, 4, 5, 12], [0, 2, 9, 10]
    source, target = (torch.randn(1, n, DIM, dtype=torch.float64) for n in (12, 10))
    encoded = encoder(source, cu_seqlens=source_bounds)
    decoded = decoder(target, encoded, cu_seqlens=target_bounds, encoded_cu_seqlens=source_bounds)
    for (a, b), (c, d) in zip(pairwise(source_bounds), pairwise(target_bounds), strict=True):
        expected = encoder(source[:, a:b])
        torch.testing.assert_close(encoded[:, a:b], expected)
        torch.testing.assert_close(decoded[:, c:d], decoder(target[:, c:d], expected))
    with pytest.raises(ValueError, match="must be given together"):
        decoder(target, encoded, cu_seqlens=target_bounds)


def test_masks_and_biases_of_layers_are_those_of_attend() -> None:
    x, encoded = torch.randn(2, 5, DIM), torch.randn(2, 3, DIM)
    positions = torch.arange(5)
    allowed = positions <= positions[:, None]
    layer = EncoderLayer(DIM, HEADS, dropout=0.0)
    bias = torch.randn(HEADS, 5, 5)
    expected = layer(x, causal=True, position_bias=bias)
    torch.testing.assert_close(layer(x, mask=allowed, position_bias=bias), expected)
    torch.testing.assert_close(layer(x, position_bias=bias.masked_fill(~allowed, -torch.inf)), expected)
    decoder = DecoderLayer(DIM, HEADS, dropout=0.0)
    near = (positions[:, None] - positions).abs() < 2
    windowed = decoder(x, encoded, window=(1, 1))
    torch.testing.assert_close(decoder(x, encoded, mask=near), windowed)
    with pytest.raises(TypeError, match=r"mask must be boolean \(True: attention is allowed\)"):
        layer(x, mask=torch.zeros(5, 5))
