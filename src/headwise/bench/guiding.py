"""`headwise bench guiding`: what a training step of BERT costs with guides.

Ours beside the unguided step by torch's SDPA, and beside what one does without headwise: eager attention, which returns
its maps, and the same guides computed from these.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.bench import measure
from headwise.bench.measure import reason
from headwise.bench.report import About, Row
from headwise.bench.runner import run_benchmark
from headwise.errors import UserError

BASELINE = "sdpa, unguided"
RIVALS = (BASELINE, "headwise, MDG and PDG", "eager maps, MDG and PDG")


@dataclass(frozen=True, kw_only=True)
class Settings:
    shapes: tuple[str, ...] = ("8x64", "8x128")
    """Batch size and length of each step, such as 64x256."""
    layers: int = 12
    """Number of layers; BERT-base has 12."""
    heads: int = 12
    """Number of heads, of width 64 each."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What autocast computes in; parameters are float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes the GPU where there is one."""
    repeats: int = 5
    """Timed rounds; every round runs all rivals."""
    compile: bool = False
    """Run every rival's model under torch.compile, without which the host may be what takes the time."""

    def __post_init__(self) -> None:
        if not self.shapes:
            raise UserError("--shapes needs at least one value")
        for shape in self.shapes:
            numbers = shape.split("x")
            if len(numbers) != 2 or not all(number.isdecimal() and int(number) > 0 for number in numbers):
                raise UserError(f"--shapes must be batch size x length, such as 64x256; got {shape}")
        for name in ("layers", "heads", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("--device cuda: torch sees no CUDA device here")

    @property
    def place(self) -> torch.device:
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        return torch.device(wanted)


@dataclass(frozen=True)
class Case:
    """One rival at one shape."""

    settings: Settings
    rival: str
    batch: int
    length: int


def bench(settings: Settings, out: Path | None, command: str) -> bool:
    """Measure, print a table, and write the report to a folder; False if it was interrupted, and so is incomplete."""
    compiled = ", models under torch.compile" if settings.compile else ""
    what = (
        f"A training step of BERT, {settings.layers} layers, {settings.heads} heads, autocast to {settings.dtype}, "
        f"AdamW{compiled}: times are multiples of the time of the unguided step in the same round, the median of "
        f"{settings.repeats} rounds, on a GPU with what its kernels take; memory is the peak of one step beyond the "
        "model and its inputs."
    )
    about = About("guiding", what, command, settings.place)
    return run_benchmark(lambda progress: run(settings, progress), len(settings.shapes) * (len(RIVALS) + 1), about, out)


def run(settings: Settings, progress: Callable[[str], None]) -> Iterator[Row]:
    device = settings.place
    for shape in settings.shapes:
        batch, length = map(int, shape.split("x"))
        rows = {rival: Row(scheme=f"batch {batch}", rival=rival, length=length) for rival in RIVALS}
        works: dict[str, measure.Work] = {}
        for rival, row in rows.items():
            progress(f"{shape}: {rival}, memory")
            case = Case(settings, rival, batch, length)
            try:
                if device.type == "cpu":
                    row.mib = measure.peak_on_cpu(prepare, case)
                work = prepare(case)
                work()
                if device.type == "cuda":
                    row.mib = measure.peak_on_cuda(work, device)
                    row.busy_ms = measure.busy_on_cuda(work, device)
                works[rival] = work
            except Exception as error:
                row.mib, row.note = None, reason(error)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        progress(f"{shape}: time")
        if BASELINE in works:
            samples = measure.time_interleaved(works, settings.repeats, device)
            for rival, times in samples.items():
                rows[rival].timed(times, samples[BASELINE], absolute=device.type == "cuda")
        yield from rows.values()


def prepare(case: Case) -> Callable[[], Tensor]:
    """A function that runs one training step, and returns its loss."""
    from transformers import BertConfig, BertForSequenceClassification

    settings, device = case.settings, case.settings.place
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64 * settings.heads,
        num_attention_heads=settings.heads,
        num_hidden_layers=settings.layers,
        intermediate_size=256 * settings.heads,
        max_position_embeddings=max(512, case.length),
    )
    model: Any = BertForSequenceClassification(config).train()
    model.to(device)
    if settings.compile:
        model.compile()
    ids = torch.randint(1000, 20000, (case.batch, case.length), device=device)
    inputs = {"input_ids": ids, "labels": torch.randint(2, (case.batch,), device=device)}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=device.type == "cuda")
    loss_of = LOSSES[case.rival](model)

    def step() -> Tensor:
        with torch.autocast(device.type, getattr(torch, settings.dtype), enabled=settings.dtype != "float32"):
            loss = loss_of(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def unguided(model: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    model.set_attn_implementation("sdpa")
    return lambda inputs: model(**inputs).loss


def ours(model: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    from headwise.guidance import guiding
    from headwise.guides import MapDiscrimination, PatternDecorrelation

    context = guiding(model, [MapDiscrimination(0.01), PatternDecorrelation(0.01)], check=False)
    guided = context.__enter__()

    def loss(inputs: dict[str, Tensor], held: object = context) -> Tensor:  # guided for as long as this function lives
        task: Tensor = model(**inputs).loss
        return task + guided.loss(task)

    return loss


def maps(model: Any) -> Callable[[dict[str, Tensor]], Tensor]:
    model.set_attn_implementation("eager")

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        output = model(**inputs, output_attentions=True)
        rows = torch.cat([weights.float().sum(dim=2) for weights in output.attentions], dim=1)
        rows = torch.nn.functional.normalize(rows, dim=-1)
        gram = rows @ rows.mT
        mdg = (gram.logsumexp(dim=-1) - gram.diagonal(dim1=1, dim2=2)).mean()
        pdg = (gram.square().sum(dim=(1, 2)) - 2 * rows.shape[1] + rows.shape[2]).mean() / rows.shape[1] ** 2
        total: Tensor = output.loss + 0.01 * mdg + 0.01 * pdg
        return total

    return loss


LOSSES = dict(zip(RIVALS, (unguided, ours, maps), strict=True))
