"""ALiBi and rotary embeddings against transformers, and schemes of one's own."""

from collections.abc import Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import Alibi, Disentangled, Rotary, Scheme, SchemeTerms, TransformerXL, attend, explain
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


HEADS, WIDTH, REACH = 2, 16, 4

#: Shapes of the terms that a scheme can combine. `sigmoid` is w and v.
TERM_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "slopes": ((HEADS,),),
    "sigmoid": ((HEADS,), (HEADS,)),
    "key_table": ((HEADS, 2 * REACH + 1, WIDTH),),
    "value_table": ((1, 2 * REACH + 1, WIDTH),),
    "query_table": ((HEADS, 2 * REACH + 1, WIDTH),),
    "relative_bias": ((HEADS, 2 * REACH + 1),),
    "biases": ((2, HEADS, WIDTH),),
}


class Combined(Scheme):
    """A scheme with any of the terms."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        super().__init__()
        self.heads, self.names, self.options = HEADS, names, options
        shapes = [shape for name in names for shape in TERM_SHAPES[name]]
        self.tensors = nn.ParameterList(0.3 * torch.randn(shape) for shape in shapes)

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        tensors = iter(self.tensors)
        terms: dict[str, Any] = {}
        for name in self.names:
            values = [next(tensors) for _ in TERM_SHAPES[name]]
            terms[name] = values[0] if len(values) == 1 else tuple(values)
        if "sigmoid" in terms:
            w, v = terms["sigmoid"]
            terms["coefficients"] = lambda n: learnable_sigmoid(w, v, n)
        return SchemeTerms(q=q, k=k, table_start=-REACH, **terms, **self.options)


def learnable_sigmoid(w: Tensor, v: Tensor, length: int) -> Tensor:
    """Return the learnable sigmoid of Wu et al. (2021), (1 + eᵛ) / (1 + exp(v − w · distance))."""
    distances = torch.arange(length, device=w.device)
    return (1 + v.exp()[:, None]) / (1 + (v[:, None] - w[:, None] * distances).exp())


TABLES = ("key_table", "value_table", "query_table")

#: Combinations that the kernels do not compute, and the reason.
REFUSED = {
    **{("slopes", table): "tables together with slopes" for table in TABLES},
    **{("sigmoid", name): "tables together with distance" for name in (*TABLES, "relative_bias")},
    ("value_table", "query_table"): "a value table with a row for every relative position",
    ("query_table", "relative_bias"): "a relative bias and a table with a row for every relative position",
}


@pytest.mark.parametrize("names", list(combinations(TERM_SHAPES, 2)), ids="-".join)
def test_kernels_compute_combined_terms_or_refuse_them(names: tuple[str, str]) -> None:
    """Own schemes combine terms that no scheme of ours does. The second call is cached."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    scheme = Combined(names).to(device)
    q, k, v = (torch.randn(1, HEADS, 20, WIDTH, device=device, requires_grad=True) for _ in range(3))

    def run(backend: Any) -> list[Tensor]:
        output = attend(q, k, v, scheme=scheme, backend=backend)
        inputs = [q, k, v, *scheme.parameters()]
        gradients = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
        return [output, *(torch.zeros_like(x) if dx is None else dx for x, dx in zip(inputs, gradients, strict=True))]

    expected = run("reference")
    torch.testing.assert_close(run("blockwise"), expected, atol=1e-4, rtol=1e-3)
    if names in REFUSED:
        with pytest.raises(ValueError, match=f"the Triton kernels do not support {REFUSED[names]}"):
            run("triton")
        return
    for _ in range(3):
        torch.testing.assert_close(run("triton"), expected, atol=2e-4, rtol=2e-3)


def test_a_cached_call_is_not_used_for_terms_that_the_kernels_refuse() -> None:
    pytest.importorskip("triton")
    x = torch.randn(1, HEADS, 20, WIDTH, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(2):
        attend(x, x, x, scheme=Combined(("sigmoid",)).to(x.device), backend="triton")
    with pytest.raises(ValueError, match="early-multiply"):
        attend(x, x, x, scheme=Combined(("sigmoid",), adjust="late-multiply").to(x.device), backend="triton")

    def half(length: int) -> Tensor:
        return torch.full((1, length), 0.5, device=x.device)

    for _ in range(2):
        attend(x, x, x, scheme=Combined(()).to(x.device), backend="triton")
    with pytest.raises(ValueError, match="early-multiply"):
        attend(x, x, x, scheme=Combined((), coefficients=half).to(x.device), backend="triton")


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"slopes": (3,)}, r"returned slopes of shape \(3,\); expected \(2\) for 2 heads"),
        (
            {"key_table": (2, 9, 5)},
            r"returned key_table of shape \(2, 9, 5\); expected \(1 or H, any, 16\) for 2 heads",
        ),
        ({"value_table": (1, 9, 8)}, r"returned value_table of shape \(1, 9, 8\); expected \(1 or H, any, 16\)"),
        ({"relative_bias": (3, 9)}, r"returned relative_bias of shape \(3, 9\); expected \(1 or H, any\)"),
        ({"biases": (2, 1, 16)}, r"returned biases of shape \(2, 1, 16\); expected \(2, 2, 16\)"),
        ({"q": (1, 2, 19, 16)}, r"returned q of shape \(1, 2, 19, 16\); expected \(1, 2, 20, any\)"),
        (None, "Wrong.forward must return SchemeTerms, got Tensor$"),
    ],
)
def test_wrong_terms_are_named(terms: dict[str, tuple[int, ...]] | None, message: str, backend: Any) -> None:
    class Wrong(Scheme):
        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> Any:
            if terms is None:
                return q
            tensors = {name: torch.zeros(shape) for name, shape in terms.items()}
            options: dict[str, Any] = {"q": q, "k": k, "table_start": -REACH, **tensors}
            return SchemeTerms(**options)

    x = torch.randn(1, HEADS, 20, WIDTH)
    with pytest.raises((TypeError, ValueError), match=message):
        attend(x, x, x, scheme=Wrong(), backend=backend)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("lengths", [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize(
    "scheme", [TransformerXL(HEADS, WIDTH), Disentangled(HEADS, WIDTH)], ids=["xl", "disentangled"]
)
def test_full_tables_of_empty_sequences(scheme: Scheme, lengths: tuple[int, int], backend: Any) -> None:
    q, k = (torch.randn(1, HEADS, n, WIDTH) for n in lengths)
    output = attend(q, k, k, scheme=scheme, backend=backend)
    assert output.shape == q.shape
    assert not output.any()


class UntiedPositions(Scheme):
    """Adds the products of vectors of the queries' and keys' positions to the scores (Ke et al. 2021, TUPE)."""

    def __init__(self, *, is_learned: bool, other_terms: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.query_positions = nn.Parameter(torch.randn(HEADS, 100, 12))
        self.key_positions = nn.Parameter(torch.randn(1, 100, 12), requires_grad=is_learned)
        self.others = other_terms or {}

    def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
        position_q = self.query_positions[:, offset : offset + q.shape[2]].expand(q.shape[0], -1, -1, -1)
        position_k = self.key_positions[None, :, : k.shape[2]]
        return SchemeTerms(q=q, k=k, position_q=position_q, position_k=position_k, **self.others)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "triton", "sdpa"])
@pytest.mark.parametrize("is_learned", [False, True])
def test_products_of_positions_are_added_to_the_scores(backend: Any, is_learned: bool) -> None:
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    scheme = UntiedPositions(is_learned=is_learned).to(device)
    q, k, v = (
        torch.randn(2, heads, n, WIDTH, device=device, requires_grad=True) for heads, n in ((2, 40), (1, 70), (1, 70))
    )
    parameters = [q, k, v, *(p for p in scheme.parameters() if p.requires_grad)]

    def run(*tensors: Tensor) -> list[Tensor]:
        queries, keys, values, query_positions, key_positions = tensors
        scores = queries @ keys.mT + query_positions[:, 3:43] @ key_positions[:, :70].mT
        output = (scores * WIDTH**-0.5).softmax(dim=-1) @ values
        return [output, *torch.autograd.grad(output.square().sum(), [x for x in tensors if x.requires_grad])]

    expected = run(*(x.detach().double().requires_grad_(x.requires_grad) for x in (q, k, v, *scheme.parameters())))
    for _ in range(2):  # the second call is cached
        output = attend(q, k, v, scheme=scheme, offset=3, backend=backend)
        result = [output, *torch.autograd.grad(output.square().sum(), parameters)]
        torch.testing.assert_close([x.double() for x in result], expected, atol=1e-4, rtol=1e-3)


OTHER_TERMS: dict[str, dict[str, Any]] = {
    "slopes": {"slopes": torch.tensor([-0.1, -0.5])},
    "coefficients": {"coefficients": lambda n: 0.9 ** torch.arange(n)[None], "rectify": True},
    "value table": {"value_table": torch.randn(1, 9, WIDTH), "table_start": -4},
    "relative bias": {"relative_bias": torch.randn(HEADS, 9), "table_start": -4},
}


@pytest.mark.parametrize("name", OTHER_TERMS)
def test_products_of_positions_can_be_combined(name: str) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    scheme = UntiedPositions(is_learned=False, other_terms=OTHER_TERMS[name])
    q, k, v = (torch.randn(2, HEADS, 70, WIDTH, requires_grad=True) for _ in range(3))
    backends: list[Any] = ["reference", "blockwise"]
    if name != "coefficients" and not torch.cuda.is_available():  # the tensors are on the CPU
        backends.append("triton")
    results: list[Any] = []
    for backend in backends:
        output = attend(q, k, v, scheme=scheme, causal=True, backend=backend)
        results.append([output, *torch.autograd.grad(output.square().sum(), [q, k, v, scheme.query_positions])])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-4, rtol=1e-3)


def test_wrong_products_of_positions_are_named() -> None:
    x, table = torch.randn(1, HEADS, 5, WIDTH), torch.randn(1, 9, WIDTH)
    with pytest.raises(ValueError, match="position_q cannot be combined with key_table, query_table or biases"):
        SchemeTerms(q=x, k=x, position_q=x, position_k=x, key_table=table)
    with pytest.raises(ValueError, match="position_q and position_k must be given together"):
        SchemeTerms(q=x, k=x, position_q=x)

    class Narrow(Scheme):
        def forward(self, q: Tensor, k: Tensor, *, offset: int = 0) -> SchemeTerms:
            return SchemeTerms(q=q, k=k, position_q=q, position_k=k[..., :3])

    with pytest.raises(ValueError, match=r"Narrow returned position_k of shape \(1, 2, 5, 3\)"):
        attend(x, x, x, scheme=Narrow())
