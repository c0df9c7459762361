"""`headwise bench attention`: our backends against SDPA, the naive formulas, torch.compile and FlexAttention.

Times are relative to SDPA, which computes attention without positions: they show the cost of a scheme.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headwise.attention import DistanceAware, Scheme, TransformerXL, attend
from headwise.attention.attend import BACKENDS
from headwise.attention.schemes import SCHEMES, make_scheme
from headwise.bench import formulas, measure
from headwise.bench.measure import NotMeasurable, resolve_device, shorten_error
from headwise.bench.report import Measurement, ReportHeader
from headwise.bench.runner import run_benchmark
from headwise.errors import UserError

BASELINE = "sdpa"
HEADWISE_BACKENDS = {f"headwise-{backend}": backend for backend in BACKENDS}
#: `attend` within torch.compile, with the backend that it selects itself.
COMPILED = "headwise-compiled"
IMPLEMENTATIONS = (BASELINE, *HEADWISE_BACKENDS, COMPILED, "naive", "naive-compiled", "flex", "flex-frozen")

#: Parts of a scheme that an implementation does not compute.
LIMITATIONS = {
    ("rpr", "flex"): "key table only",
    ("rpr", "flex-frozen"): "key table only, not trained",
    ("distance-aware", "flex-frozen"): "w and v not trained",
    ("transformer-xl", "flex-frozen"): "not trained",
    ("tener", "flex-frozen"): "not trained",
}

#: Schemes with other implementations to compare with (`formulas.py`).
BenchSchemeName = Literal["plain", "rpr", "transformer-xl", "tener", "distance-aware"]

#: Kernels of SDPA on a GPU that do not compute whole maps.
FUSED_KERNELS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)

#: Implementations that take more seconds per call are not run at greater lengths.
MAX_SECONDS = 0.25

#: Largest plausible errors, relative to the largest value. Implementations with larger errors compute something else
#: and are not timed. Naive formulas in half precision come close (rpr at N = 2048 in bfloat16: 0.35).
MAX_ERRORS = {"float64": 1e-8, "float32": 1e-2, "bfloat16": 0.75, "float16": 0.75}

#: Up to this many pairs the float64 oracle is `reference`; above, where whole maps do not fit, it is `blockwise`.
MAX_REFERENCE_PAIRS = 2**26
#: Above this many pairs nothing is checked, because the oracle would take hours.
MAX_CHECKED_PAIRS = 2**30


@dataclass(frozen=True, kw_only=True)
class AttentionBenchConfig:
    """Options of `headwise bench attention`."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    """Sequence lengths N."""
    schemes: tuple[BenchSchemeName, ...] = get_args(BenchSchemeName)
    """Position schemes."""
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    """Implementations to compare; naive is the paper's formula, flex is FlexAttention, and frozen means that the scheme
    is not trained. Times are relative to sdpa, which is always included."""
    batch: int = 1
    """Batch size."""
    heads: int = 4
    """Number of heads."""
    key_heads: int | None = None
    """Number of heads of keys and values, which must divide --heads. Not set: as many as --heads."""
    head_dim: int = 64
    """Dimension of each head; must be even."""
    queries: int | None = None
    """Number of queries, at the end of the sequence: 1 measures decoding with a cache. Not set: all N."""
    layout: Literal["bhnd", "bnhd"] = "bhnd"
    """Order of batch, heads, positions and width in memory. bhnd is contiguous; bnhd is that of a model's projections,
    which are transposed, and torch's SDPA can have a faster kernel for it."""
    clip: int = 16
    """Clipping distance k of rpr."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Precision of q, k and v. Parameters are float32, or float64 if q, k and v are."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto uses the GPU if there is one."""
    causal: bool = False
    """Use causal attention."""
    initial_w: float | None = None
    """Initial value of distance-aware's w in all heads: 0 is that of retrofitted models. Not set: random."""
    received: bool = False
    """Also compute received attention, except with sdpa."""
    graphs: bool = False
    """Run in CUDA graphs, which excludes Python overhead from the times."""
    forward_only: bool = False
    """Run the forward pass without gradients, instead of forward and backward."""
    repeats: int = 9
    """Number of timed rounds; each round runs all implementations."""

    def __post_init__(self) -> None:
        for name in ("lengths", "schemes", "implementations"):
            if not getattr(self, name):
                raise UserError(f"--{name} needs at least one value")
        numbers = {"lengths": min(self.lengths), "batch": self.batch, "heads": self.heads, "repeats": self.repeats}
        for name, number in numbers.items():
            if number < 1:
                raise UserError(f"--{name} must be at least 1, got {number}")
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise UserError(f"--key-heads must divide --heads {self.heads}, got {self.key_heads}")
        if self.queries is not None and not 1 <= self.queries <= min(self.lengths):
            raise UserError(f"--queries must be between 1 and the smallest length, got {self.queries}")
        if self.queries is not None and self.causal:
            raise UserError("--queries cannot be combined with --causal")
        if self.head_dim < 2 or self.head_dim % 2:
            raise UserError(f"--head-dim must be even and at least 2, got {self.head_dim}")
        if self.clip < 0:
            raise UserError(f"--clip must be at least 0, got {self.clip}")
        for implementation in self.implementations:
            if implementation not in IMPLEMENTATIONS:
                raise UserError(f"--implementations must be among {', '.join(IMPLEMENTATIONS)}; got {implementation}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch finds no CUDA device")
        if self.graphs and self.torch_device.type != "cuda":
            raise UserError("--graphs needs a GPU")

    @property
    def torch_device(self) -> torch.device:
        return resolve_device(self.device)

    @property
    def parameter_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Case:
    """One implementation of one scheme at one length."""

    config: AttentionBenchConfig
    scheme: BenchSchemeName
    implementation: str
    length: int

    @property
    def num_queries(self) -> int:
        return self.config.queries or self.length

    @property
    def num_pairs(self) -> int:
        return self.config.batch * self.config.heads * self.num_queries * self.length

    @property
    def returns_received(self) -> bool:
        return self.config.received and self.implementation != BASELINE

    @property
    def is_flex(self) -> bool:
        return self.implementation.startswith("flex")

    @property
    def has_own_oracle(self) -> bool:
        """Whether the implementation computes something else than the other ones."""
        return self.implementation == BASELINE or (self.scheme == "rpr" and self.is_flex)


def bench(config: AttentionBenchConfig, out_dir: Path | None, command: str) -> bool:
    """Run the benchmark, print its tables and write its report; see `run_benchmark`."""
    header = ReportHeader("attention", describe(config), command, config.torch_device)
    return run_benchmark(lambda progress: run(config, progress), count_steps(config), header, out_dir)


def describe(config: AttentionBenchConfig) -> str:
    """Return the report's description."""
    passes = "forward" if config.forward_only else "forward and backward with trained parameters"
    options = [name for name in ("causal", "received", "graphs") if getattr(config, name)]
    key_heads = "" if config.key_heads is None else f" ({config.key_heads} for keys)"
    shape = f"Batch {config.batch}, {config.heads} heads{key_heads} of width {config.head_dim}, {config.dtype}"
    if config.queries is not None:
        options.append(f"{config.queries} queries")
    if config.layout != "bhnd":
        options.append(f"layout {config.layout}")
    if config.initial_w is not None:
        options.append(f"initial w {config.initial_w:g}")
    return (
        f"{', '.join([shape, passes, *options])}. Times are relative to torch's SDPA without positions in the same "
        f"round (median of {config.repeats} rounds). Memory is the peak of one call, without its inputs. Errors are "
        "the largest absolute error of the output and the largest relative error of a gradient, against float64."
    )


def run(config: AttentionBenchConfig, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """Yield the measurements, scheme by scheme and length by length. Calls `progress` at every step."""
    for scheme in config.schemes:
        too_slow: dict[str, str] = {}
        for length in config.lengths:
            implementations = dict.fromkeys((BASELINE, *config.implementations))
            cases = [Case(config, scheme, implementation, length) for implementation in implementations]
            yield from compare(cases, progress, too_slow)


def count_steps(config: AttentionBenchConfig) -> int:
    """Return how often `run` calls `progress`."""
    return len(config.schemes) * len(config.lengths) * (2 * len({BASELINE, *config.implementations}) + 1)


def compare(cases: Sequence[Case], progress: Callable[[str], None], too_slow: dict[str, str]) -> list[Measurement]:
    """Measure all implementations of one scheme at one length.

    Args:
        cases: the implementations, the baseline first.
        progress: called at every step.
        too_slow: implementations to skip, with the reason. Those that took too long are added.
    """
    torch.compiler.reset()  # the compiler would give up after a few lengths
    config, device = cases[0].config, cases[0].config.torch_device
    results = {
        case.implementation: Measurement(scheme=case.scheme, implementation=case.implementation, length=case.length)
        for case in cases
    }
    workloads: dict[str, measure.Workload] = {}
    for case in cases:
        result, label = results[case.implementation], f"{case.scheme}, N = {case.length}: {case.implementation}"
        try:
            progress(f"{label}, memory")
            if case.implementation in too_slow:
                raise NotMeasurable(too_slow[case.implementation])
            if device.type == "cpu":
                result.peak_mib = measure.cpu_peak_mib(build_workload, case)
            progress(f"{label}, errors")
            workload = build_workload(case)
            result.output_error, result.gradient_error = compute_errors(case, workload())
            if device.type == "cuda":
                result.peak_mib = measure.cuda_peak_mib(workload, device)
                result.kernel_ms = measure.cuda_kernel_ms(workload, device)
            result.note = LIMITATIONS.get((case.scheme, case.implementation), "")
            workloads[case.implementation] = measure.capture_cuda_graph(workload) if config.graphs else workload
        except Exception as error:
            result.peak_mib, result.note = None, shorten_error(error)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    progress(f"{cases[0].scheme}, N = {cases[0].length}: time")
    if BASELINE in workloads:
        samples = measure.time_interleaved(workloads, config.repeats, device)
        for implementation, seconds in samples.items():
            results[implementation].set_times(seconds, samples[BASELINE], absolute=device.type == "cuda")
            if min(seconds) > MAX_SECONDS:
                too_slow[implementation] = f"not run: {min(seconds):.1f} s at N = {cases[0].length}"
    return list(results.values())


def build_workload(case: Case) -> Callable[[], list[Tensor]]:
    """Return a function that runs the implementation once, and returns its outputs and gradients."""
    scheme = build_scheme(case)
    return build_step(case, build_forward(case, scheme), scheme, make_tensors(case))


@lru_cache(maxsize=3)
def exact_results(case: Case) -> list[Tensor]:
    """Compute what the implementation should return, with our operator in float64."""
    scheme = build_scheme(case).double()
    forward = build_headwise(case, scheme, "reference" if case.num_pairs <= MAX_REFERENCE_PAIRS else "blockwise")
    return build_step(case, forward, scheme, [x.double() for x in make_tensors(case)])()


def compute_errors(case: Case, results: Sequence[Tensor]) -> tuple[float | None, float | None]:
    """Return the largest error of the outputs, and of the gradients relative to the largest value of the gradient.

    Both are None if there are too many pairs to check.

    Raises:
        NotMeasurable: the errors are so large that the implementation computes something else.
    """
    if case.num_pairs > MAX_CHECKED_PAIRS:
        return None, None
    oracle_case = case if case.has_own_oracle else replace(case, implementation=next(iter(HEADWISE_BACKENDS)))
    expected = exact_results(oracle_case)[: len(results)]
    errors = [float((x - y).abs().max()) for x, y in zip(results, expected, strict=True)]
    largest = [float(y.abs().max()) for y in expected]
    # A gradient that is zero, such as that of v where w is zero, is compared with the largest gradient.
    scales = [x if x > 1e-9 * max(largest) else max(largest) for x in largest]
    relative_errors = [error / scale for error, scale in zip(errors, scales, strict=True)]
    if not max(relative_errors) <= MAX_ERRORS[case.config.dtype]:
        raise NotMeasurable(f"computes something else: error {max(relative_errors):.1e}")
    num_outputs = 2 if case.returns_received else 1
    return max(errors[:num_outputs]), max(relative_errors[num_outputs:], default=None)


def build_step(
    case: Case, forward: formulas.Attention, scheme: Scheme, tensors: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """Return a function that runs the forward pass and, unless forward only, the backward pass."""
    q, k, v, *output_gradients = tensors
    if case.config.forward_only:
        return torch.no_grad()(lambda: list(forward(q, k, v)))
    leaves = [x.requires_grad_() for x in (q, k, v)] + [p for p in scheme.parameters() if p.requires_grad]

    def forward_and_backward() -> list[Tensor]:
        outputs = forward(q, k, v)
        gradients = [g.to(x.dtype) for x, g in zip(outputs, output_gradients, strict=False)]
        return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, leaves, gradients)]

    return forward_and_backward


def build_forward(case: Case, scheme: Scheme) -> formulas.Attention:
    """Return the implementation's forward pass."""
    config, device = case.config, case.config.torch_device
    if case.implementation == BASELINE:
        return build_fastest_sdpa(case, scheme)
    if case.implementation in HEADWISE_BACKENDS:
        return build_headwise(case, scheme, HEADWISE_BACKENDS[case.implementation])
    if case.implementation == COMPILED:
        return torch.compile(build_headwise(case, scheme, "auto"), dynamic=False)
    if config.queries is not None:
        raise NotMeasurable("needs as many queries as keys")
    dim = scheme.dim if isinstance(scheme, TransformerXL) else config.head_dim
    embeddings = formulas.sinusoids(case.length, dim).to(device, config.parameter_dtype)
    if case.is_flex:
        if config.received:
            raise NotMeasurable("no received attention")
        if device.type == "cpu" and not config.forward_only:
            raise NotMeasurable("no backward on CPU")
        return compile_attention(
            formulas.flex(case.scheme, scheme, embeddings, config.causal, grouped=config.key_heads is not None)
        )
    formula = formulas.NAIVE[case.scheme](scheme, embeddings, config.causal)

    def naive(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        if config.key_heads is not None:
            k, v = (x.repeat_interleave(config.heads // x.shape[1], dim=1) for x in (k, v))
        output, weights = formula(q, k, v)
        return (output, weights.sum(dim=-2)) if config.received else (output,)

    return compile_attention(naive) if case.implementation == "naive-compiled" else naive


def build_fastest_sdpa(case: Case, scheme: Scheme) -> formulas.Attention:
    """Return torch's SDPA; on a GPU with its fastest kernel, if that is faster than the one that it selects itself."""

    def default_sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        grouped = case.config.key_heads is not None
        return (F.scaled_dot_product_attention(q, k, v, is_causal=case.config.causal, enable_gqa=grouped),)

    if case.config.torch_device.type != "cuda":
        return default_sdpa

    def sdpa_with(kernel: SDPBackend) -> formulas.Attention:
        def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            with sdpa_kernel(kernel):
                return default_sdpa(q, k, v)

        return attention

    # Selecting a kernel takes time in Python, which counts for short sequences: SDPA without it is a candidate, too.
    candidates = [default_sdpa, *map(sdpa_with, FUSED_KERNELS)]
    seconds = {}
    for attention in candidates:
        with suppress(RuntimeError):  # kernels do not support all dtypes and widths
            workload = build_step(case, attention, scheme, make_tensors(case))
            workload()
            seconds[attention] = min(measure.seconds_per_call(workload, 20, case.config.torch_device) for _ in range(3))
    return min(seconds, key=seconds.__getitem__, default=default_sdpa)


def build_headwise(case: Case, scheme: Scheme, backend: Any) -> formulas.Attention:
    """Return `attend` with one of its backends."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"causal": case.config.causal, "return_received": case.returns_received}
        if case.config.queries is not None:
            options["offset"] = case.length - case.num_queries
        results = attend(q, k, v, scheme=scheme, backend=backend, **options)
        return (results.output, results.received) if case.returns_received else (results,)

    return attention


def compile_attention(attention: formulas.Attention) -> formulas.Attention:
    """Compile for one length, as one graph."""
    return torch.compile(attention, dynamic=False, fullgraph=True)


def build_scheme(case: Case) -> Scheme:
    """Return the scheme that the implementation computes, with the same parameters for all implementations."""
    name = "plain" if case.implementation == BASELINE else case.scheme
    options: dict[str, dict[str, Any]] = {
        "rpr": {"k": case.config.clip, "values": not case.is_flex},
        "distance-aware": {"v_std": 1.0},
    }
    torch.manual_seed(0)
    scheme = make_scheme(SCHEMES[name], heads=case.config.heads, head_dim=case.config.head_dim, **options.get(name, {}))
    if isinstance(scheme, DistanceAware) and case.config.initial_w is not None:
        torch.nn.init.constant_(scheme.w, case.config.initial_w)
    scheme.requires_grad_(case.implementation != "flex-frozen")
    return scheme.to(case.config.torch_device, case.config.parameter_dtype)


def make_tensors(case: Case) -> list[Tensor]:
    """Return random q, k, v and gradients of the output and of received attention."""
    config = case.config
    torch.manual_seed(1)
    shape_q = (config.batch, config.heads, case.num_queries, config.head_dim)
    shape_k = (config.batch, config.key_heads or config.heads, case.length, config.head_dim)
    shapes = [shape_q, shape_k, shape_k, shape_q, (config.batch, config.heads, case.length)]
    tensors = [torch.randn(shape).to(config.torch_device, getattr(torch, config.dtype)) for shape in shapes]
    if config.layout == "bnhd":
        tensors[:4] = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors[:4]]
    return tensors
