"""`T5Bias` and `Disentangled` against transformers' own T5 and DeBERTa-v2, with the same weights, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import Disentangled, T5Bias, attend

B, N, HEADS, HEAD_DIM = 2, 13, 3, 12  # 3 · 12 is a square: DeBERTa computes the square root in float32
DIM = HEADS * HEAD_DIM
BACKENDS = ["reference", "blockwise"]


def split_heads(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:-1], HEADS, HEAD_DIM).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_decoder", [False, True])
def test_t5_bias_is_that_of_t5(is_decoder: bool, backend: Any) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = t5.T5Config(
        d_model=DIM,
        d_kv=HEAD_DIM,
        num_heads=HEADS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=9,
        is_decoder=is_decoder,
        attn_implementation="eager",
    )
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0, is_causal=is_decoder).double().eval()
    states = torch.randn(B, N, DIM, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(B, 1, N, N, dtype=torch.float64)
    if is_decoder:
        mask = mask.masked_fill(torch.ones(N, N).triu(1) > 0, -torch.inf)
    expected = layer(states, mask=mask)[0]

    scheme = T5Bias(HEADS, num_buckets=8, max_distance=9, bidirectional=not is_decoder).double()
    with torch.no_grad():
        scheme.bias.copy_(layer.relative_attention_bias.weight.T)
    q, k, v = (split_heads(projection(states)) for projection in (layer.q, layer.k, layer.v))
    result = layer.o(merge_heads(attend(q, k, v, scheme=scheme, scale=1.0, causal=is_decoder, backend=backend)))
    torch.testing.assert_close(result, expected, atol=1e-8, rtol=1e-8)
    d_result = torch.randn_like(expected)
    expected_grads = torch.autograd.grad(expected, [states, layer.relative_attention_bias.weight], d_result)
    d_states, d_bias = torch.autograd.grad(result, [states, scheme.bias], d_result)
    torch.testing.assert_close((d_states, d_bias.T), expected_grads, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000), (320, 800)])
def test_buckets_are_those_of_t5(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    scheme = T5Bias(1, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional)
    positions = torch.arange(-2000, 2001)
    expected = t5.T5Attention._relative_position_bucket(positions, bidirectional, num_buckets, max_distance)
    assert torch.equal(scheme.buckets(positions), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_buckets", [None, 6])
@pytest.mark.parametrize("share_att_key", [False, True])
def test_disentangled_is_that_of_deberta_v2(share_att_key: bool, num_buckets: int | None, backend: Any) -> None:
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    config = deberta.DebertaV2Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=10,
        position_buckets=num_buckets or -1,
        pos_att_type=["c2p", "p2c"],
        share_att_key=share_att_key,
    )
    layer = deberta.DisentangledSelfAttention(config).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    embeddings = torch.randn(2 * (num_buckets or 10), DIM, dtype=torch.float64, requires_grad=True)
    states = torch.randn(B, N, DIM, dtype=torch.float64, requires_grad=True)
    padding = torch.arange(N) < torch.tensor([[N], [N - 4]])
    mask = padding[:, None, None, :] & padding[:, None, :, None]
    expected = layer(states, mask, rel_embeddings=embeddings)[0][padding]

    scheme = Disentangled(HEADS, HEAD_DIM, max_distance=10, num_buckets=num_buckets).double()
    scheme.embeddings = torch.nn.Parameter(embeddings.detach().clone())
    scheme.key_projection = layer.key_proj if share_att_key else layer.pos_key_proj
    scheme.query_projection = layer.query_proj if share_att_key else layer.pos_query_proj
    q, k, v = (split_heads(p(states)) for p in (layer.query_proj, layer.key_proj, layer.value_proj))
    result = merge_heads(attend(q, k, v, scheme=scheme, key_padding=padding, backend=backend))[padding]
    torch.testing.assert_close(result, expected, atol=1e-8, rtol=1e-8)
    d_result = torch.randn_like(expected)
    weights = [states, *layer.parameters()]
    expected_grads = torch.autograd.grad(expected, [embeddings, *weights], d_result)
    grads = torch.autograd.grad(result, [scheme.embeddings, *weights], d_result)
    torch.testing.assert_close(grads, expected_grads, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (32, 128), (6, 10)])
def test_buckets_are_those_of_deberta_v2(num_buckets: int, max_distance: int) -> None:
    deberta = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    differences = torch.arange(-2000, 2001)
    buckets = deberta.make_log_bucket_position(differences, num_buckets, max_distance).long()
    expected = (buckets + num_buckets).clamp(0, 2 * num_buckets - 1)
    scheme = Disentangled(1, 2, max_distance=max_distance, num_buckets=num_buckets)
    assert torch.equal(scheme.rows(differences), expected)
