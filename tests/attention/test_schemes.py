"""ALiBi and rotary embeddings against transformers, and schemes of one's own."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import Alibi, Rotary, Scheme, SchemeTerms, attend, explain
from tests.attention.cases import RETURN_ALL


@pytest.mark.parametrize("heads", [1, 4, 6, 12])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    positions = bloom.build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(Alibi(heads).slopes.detach(), -positions[:, 0, 1])
    assert not Alibi(heads).slopes.requires_grad


def test_rotation_is_that_of_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k, v = (torch.randn(2, heads, 7, 8) for heads in (4, 2, 2))
    angles = torch.arange(7)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = (torch.cat([x, x], dim=-1)[None] for x in (angles.cos(), angles.sin()))
    rotated_q, rotated_k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    module = SimpleNamespace(num_key_value_groups=2, training=False)
    expected, _ = llama.eager_attention_forward(module, rotated_q, rotated_k, v, None, scaling=8**-0.5)
    torch.testing.assert_close(attend(q, k, v, scheme=Rotary(8)).transpose(1, 2), expected)


class LearnedAlibi(Scheme):
    """The worked example of the documentation."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.slopes = nn.Parameter(-torch.logspace(-1, -8, heads, base=2))

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        return SchemeTerms(q=q, k=k, slopes=self.slopes)


def test_a_scheme_of_ones_own_runs_with_all_backends() -> None:
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scheme = LearnedAlibi(2).to(device)
    q, k, v = (torch.randn(1, 2, n, 32, device=device, requires_grad=True) for n in (40, 50, 50))
    results: list[Any] = []
    for backend in ("reference", "blockwise", "triton"):
        output = attend(q, k, v, scheme=scheme, causal=True, backend=backend)
        results.append([output, *torch.autograd.grad(output.square().sum(), [q, k, v, scheme.slopes])])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-4, rtol=1e-3)
    if device == "cuda":
        assert explain(q, k, v, scheme=scheme).backend == "triton"


def test_slopes_are_linear_coefficients_that_are_added() -> None:
    class Added(LearnedAlibi):
        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
            def coefficients(length: int) -> Tensor:
                return self.slopes[:, None] * torch.arange(length)

            return SchemeTerms(q=q, k=k, coefficients=coefficients, adjust="early-add")

    x = torch.randn(1, 2, 6, 4)
    results = [attend(x, x, x, scheme=scheme, offset=2, **RETURN_ALL) for scheme in (LearnedAlibi(2), Added(2))]
    torch.testing.assert_close(results[0], results[1])
