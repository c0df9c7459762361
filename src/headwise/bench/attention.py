"""`headwise bench attention`: our backends beside torch's SDPA, the naive formula, torch.compile and FlexAttention.

Every time is a ratio to SDPA, which is plain attention without positions: what a scheme costs on top.
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

from headwise.attention import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL, attend
from headwise.attention.attend import BACKENDS
from headwise.bench import formulas, measure
from headwise.bench.measure import NotMeasurable, reason
from headwise.bench.report import About, Row
from headwise.bench.runner import run_benchmark
from headwise.errors import UserError

SchemeName = Literal["distance-aware", "plain", "rpr", "tener", "transformer-xl"]

BASELINE = "sdpa"
OURS = {f"headwise-{backend}": backend for backend in BACKENDS}
RIVALS = (BASELINE, *OURS, "naive", "naive-compiled", "flex", "flex-frozen")

#: What some rivals leave out.
NOTES = {
    ("rpr", "flex"): "keys' table only",
    ("rpr", "flex-frozen"): "keys' table only, not trained",
    ("distance-aware", "flex-frozen"): "w and v not trained",
    ("transformer-xl", "flex-frozen"): "not trained",
    ("tener", "flex-frozen"): "not trained",
}

#: A rival that takes more seconds a call is not run at greater lengths.
PATIENCE = 0.25

#: Errors above these, relative to the largest value, mean a wrong formula: it is not timed. Naive formulas in half
#: precision come close to that (rpr at N = 2048 in bfloat16: 0.35).
WRONG = {"float64": 1e-8, "float32": 1e-2, "bfloat16": 0.75, "float16": 0.75}

#: Above this many pairs the float64 oracle is blockwise, as the reference would not fit; above so many there is none.
ORACLE_PAIRS, CHECKED_PAIRS = 2**26, 2**30


@dataclass(frozen=True, kw_only=True)
class Settings:
    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    """Numbers of tokens N."""
    schemes: tuple[SchemeName, ...] = get_args(SchemeName)
    """Position schemes."""
    rivals: tuple[str, ...] = RIVALS
    """What is compared; sdpa, the baseline, always is."""
    batch: int = 1
    """Batch size."""
    heads: int = 4
    """Number of heads."""
    head_dim: int = 64
    """Width of a head, even."""
    clip: int = 16
    """Clipping distance k of rpr."""
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    """Precision of q, k and v; learned parameters stay float32 beside half precision."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes the GPU where there is one."""
    causal: bool = False
    """Queries see no later keys."""
    received: bool = False
    """Also compute what each key receives (the baseline does not)."""
    graphs: bool = False
    """Time a CUDA graph of each call: what the GPU takes, without the time that Python takes to ask for it."""
    forward_only: bool = False
    """Forward without gradients, instead of forward and backward with trained parameters."""
    repeats: int = 9
    """Timed rounds; every round runs all rivals."""

    def __post_init__(self) -> None:
        for name in ("lengths", "schemes", "rivals"):
            if not getattr(self, name):
                raise UserError(f"--{name} needs at least one value")
        numbers = {"lengths": min(self.lengths), "batch": self.batch, "heads": self.heads, "repeats": self.repeats}
        for name, number in numbers.items():
            if number < 1:
                raise UserError(f"--{name} must be at least 1, got {number}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise UserError(f"--head-dim must be even and at least 2, got {self.head_dim}")
        if self.clip < 0:
            raise UserError(f"--clip must be at least 0, got {self.clip}")
        for rival in self.rivals:
            if rival not in RIVALS:
                raise UserError(f"--rivals must be among {', '.join(RIVALS)}; got {rival}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here")
        if self.graphs and self.place.type != "cuda":
            raise UserError("--graphs needs a GPU: only CUDA has graphs")

    @property
    def place(self) -> torch.device:
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        return torch.device(wanted)

    @property
    def parameter_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Case:
    """One rival at one scheme and length."""

    settings: Settings
    scheme: SchemeName
    rival: str
    length: int

    @property
    def received(self) -> bool:
        return self.settings.received and self.rival != BASELINE

    @property
    def own_scheme(self) -> bool:
        """Whether it computes something else than the other rivals."""
        return self.rival == BASELINE or (self.scheme == "rpr" and self.by_flex)

    @property
    def by_flex(self) -> bool:
        return self.rival.startswith("flex")


def bench(settings: Settings, out: Path | None, command: str) -> bool:
    """Measure, print a table, and write the report to a folder; False if it was interrupted, and so is incomplete."""
    about = About("attention", describe(settings), command, settings.place)
    return run_benchmark(lambda progress: run(settings, progress), steps(settings), about, out)


def describe(settings: Settings) -> str:
    passes = "forward" if settings.forward_only else "forward and backward, parameters trained"
    options = [name for name in ("causal", "received", "graphs") if getattr(settings, name)]
    shape = f"batch {settings.batch}, {settings.heads} heads of width {settings.head_dim}, {settings.dtype}"
    return (
        f"{', '.join([shape, passes, *options])}. Times are multiples of the time of torch's plain SDPA without "
        f"positions in the same round, the median of {settings.repeats} rounds; memory is the peak of one call beyond "
        "its inputs; the errors of outputs and of gradients are the largest ones against float64, those of a gradient "
        "relative to its largest value."
    )


def run(settings: Settings, progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure everything; the rows of a scheme and length come together. `progress` hears of every step."""
    for scheme in settings.schemes:
        slow: dict[str, str] = {}
        for length in settings.lengths:
            rivals = dict.fromkeys((BASELINE, *settings.rivals))
            yield from compare([Case(settings, scheme, rival, length) for rival in rivals], progress, slow)


def steps(settings: Settings) -> int:
    """How often `run` calls `progress`."""
    return len(settings.schemes) * len(settings.lengths) * (2 * len({BASELINE, *settings.rivals}) + 1)


def compare(cases: Sequence[Case], progress: Callable[[str], None], slow: dict[str, str]) -> list[Row]:
    """The rows of one scheme and length, the baseline first; `slow` says which rivals have had their time, and why."""
    torch.compiler.reset()  # else, after a few lengths, compiled rivals would be refused
    settings, device = cases[0].settings, cases[0].settings.place
    rows = {case.rival: Row(scheme=case.scheme, rival=case.rival, length=case.length) for case in cases}
    works: dict[str, measure.Work] = {}
    for case in cases:
        row, where = rows[case.rival], f"{case.scheme}, N = {case.length}: {case.rival}"
        try:
            progress(f"{where}, memory")
            if case.rival in slow:
                raise NotMeasurable(slow[case.rival])
            if device.type == "cpu":
                row.mib = measure.peak_on_cpu(prepare, case)
            progress(f"{where}, numbers")
            work = prepare(case)
            row.output_error, row.gradient_error = check(case, work())
            if device.type == "cuda":
                row.mib = measure.peak_on_cuda(work, device)
            row.note = NOTES.get((case.scheme, case.rival), "")
            works[case.rival] = measure.captured(work) if settings.graphs else work
        except Exception as error:
            row.mib, row.note = None, reason(error)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    progress(f"{cases[0].scheme}, N = {cases[0].length}: time")
    if BASELINE in works:
        samples = measure.time_interleaved(works, settings.repeats, device)
        for rival, times in samples.items():
            rows[rival].timed(times, samples[BASELINE], absolute=device.type == "cuda")
            if min(times) > PATIENCE:
                slow[rival] = f"not run: {min(times):.1f} s at N = {cases[0].length}"
    return list(rows.values())


def prepare(case: Case) -> Callable[[], list[Tensor]]:
    """A function that runs the rival once: its outputs and, unless forward only, every gradient."""
    scheme = scheme_of(case)
    return whole_run(case, forward_of(case, scheme), scheme, tensors_of(case))


@lru_cache(maxsize=3)
def exact(case: Case) -> list[Tensor]:
    """What the rival should find: the same by our operator in float64."""
    scheme = scheme_of(case).double()
    pairs = case.settings.batch * case.settings.heads * case.length**2
    forward = ours(case, scheme, "reference" if pairs <= ORACLE_PAIRS else "blockwise")
    return whole_run(case, forward, scheme, [x.double() for x in tensors_of(case)])()


def check(case: Case, found: Sequence[Tensor]) -> tuple[float | None, float | None]:
    """How far a rival's numbers are off: the outputs' largest error, and the gradients', relative to the largest value
    of that gradient. Both are None where an oracle would take hours.

    Raises:
        CannotRun: they are so far off that it computes something else.
    """
    if case.settings.batch * case.settings.heads * case.length**2 > CHECKED_PAIRS:
        return None, None
    expected = exact(case if case.own_scheme else replace(case, rival=next(iter(OURS))))[: len(found)]
    errors = [float((x - y).abs().max()) for x, y in zip(found, expected, strict=True)]
    relative = [error / float(y.abs().max()) for error, y in zip(errors, expected, strict=True)]
    if not max(relative) <= WRONG[case.settings.dtype]:
        raise NotMeasurable(f"computes something else: error {max(relative):.1e}")
    outputs = 2 if case.received else 1
    return max(errors[:outputs]), max(relative[outputs:], default=None)


def whole_run(
    case: Case, forward: formulas.Attention, scheme: Scheme, tensors: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    q, k, v, *output_gradients = tensors
    if case.settings.forward_only:
        return torch.no_grad()(lambda: list(forward(q, k, v)))
    leaves = [x.requires_grad_() for x in (q, k, v)] + [p for p in scheme.parameters() if p.requires_grad]

    def forward_and_backward() -> list[Tensor]:
        outputs = forward(q, k, v)
        gradients = [g.to(x.dtype) for x, g in zip(outputs, output_gradients, strict=False)]
        return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, leaves, gradients)]

    return forward_and_backward


def forward_of(case: Case, scheme: Scheme) -> formulas.Attention:
    settings, device = case.settings, case.settings.place
    if case.rival == BASELINE:
        return fastest_sdpa(case, scheme)
    if case.rival in OURS:
        return ours(case, scheme, OURS[case.rival])
    width = scheme.dim if isinstance(scheme, TransformerXL) else settings.head_dim
    waves = formulas.sinusoids(case.length, width).to(device, settings.parameter_dtype)
    if case.by_flex:
        if settings.received:
            raise NotMeasurable("gives no received attention")
        if device.type == "cpu" and not settings.forward_only:
            raise NotMeasurable("no backward on CPU")
        return compiled(formulas.flex(case.scheme, scheme, waves, settings.causal))
    formula = formulas.NAIVE[case.scheme](scheme, waves, settings.causal)

    def naive(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        output, weights = formula(q, k, v)
        return (output, weights.sum(dim=-2)) if settings.received else (output,)

    return compiled(naive) if case.rival == "naive-compiled" else naive


def fastest_sdpa(case: Case, scheme: Scheme) -> formulas.Attention:
    """torch's SDPA by the fastest of its kernels; on a GPU the one that it picks by itself need not be that."""

    def by_itself(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=case.settings.causal),)

    if case.settings.place.type != "cuda":
        return by_itself

    def by(kernel: SDPBackend) -> formulas.Attention:
        def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            with sdpa_kernel(kernel):
                return by_itself(q, k, v)

        return attention

    times = {}
    for kernel in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with suppress(RuntimeError):  # not every kernel takes every dtype and width
            work = whole_run(case, by(kernel), scheme, tensors_of(case))
            work()
            times[kernel] = min(measure.seconds(work, 5, case.settings.place) for _ in range(3))
    return by(min(times, key=times.__getitem__)) if times else by_itself


def ours(case: Case, scheme: Scheme, backend: Any) -> formulas.Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"causal": case.settings.causal, "return_received": case.received}
        attended = attend(q, k, v, scheme=scheme, backend=backend, **options)
        return attended if case.received else (attended,)

    return attention


def compiled(attention: formulas.Attention) -> formulas.Attention:
    """For exactly this length, and as a whole or not at all."""
    return torch.compile(attention, dynamic=False, fullgraph=True)


def scheme_of(case: Case) -> Scheme:
    """The scheme that the rival computes; its parameters are the same for all rivals."""
    heads, head_dim = case.settings.heads, case.settings.head_dim
    torch.manual_seed(0)
    scheme: Scheme
    if case.rival == BASELINE or case.scheme == "plain":
        scheme = Plain()
    elif case.scheme == "rpr":
        scheme = RelativePositions(heads, head_dim, case.settings.clip, values=not case.by_flex)
    elif case.scheme == "tener":
        scheme = Tener(heads, head_dim)
    elif case.scheme == "transformer-xl":
        scheme = TransformerXL(heads, head_dim)
    else:
        scheme = DistanceAware(heads, v_spread=1.0)
    scheme.requires_grad_(case.rival != "flex-frozen")
    return scheme.to(case.settings.place, case.settings.parameter_dtype)


def tensors_of(case: Case) -> list[Tensor]:
    """q, k, v and the gradients of the output and of what keys receive."""
    settings = case.settings
    torch.manual_seed(1)
    shape = (settings.batch, settings.heads, case.length, settings.head_dim)
    drawn = [torch.randn(shape) for _ in range(4)] + [torch.randn(shape[:3])]
    return [x.to(settings.place, getattr(torch, settings.dtype)) for x in drawn]
