"""`headwise bench guiding`: a training step of BERT with guides, and with retrofitted schemes.

It compares headwise with the unguided step by SDPA, and with the same guides computed from the maps of eager attention.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.bench import measure
from headwise.bench.measure import resolve_device, shorten_error
from headwise.bench.report import Measurement, ReportHeader
from headwise.bench.runner import run_benchmark
from headwise.errors import UserError

BASELINE = "sdpa, unguided"

LossFunction = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True, kw_only=True)
class GuidingBenchConfig:
    """Options of `headwise bench guiding`."""

    shapes: tuple[str, ...] = ("8x64", "8x128")
    """Batch sizes and sequence lengths, such as 64x256."""
    layers: int = 12
    """Number of layers; BERT-base has 12."""
    heads: int = 12
    """Number of heads; each has dimension 64."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of autocast; parameters are float32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; auto uses the GPU if there is one."""
    repeats: int = 5
    """Number of timed rounds; each round runs all implementations."""
    compile: bool = False
    """Compile the models with torch.compile; without it, Python overhead may dominate."""

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
            raise UserError("--device cuda: torch finds no CUDA device")

    @property
    def torch_device(self) -> torch.device:
        return resolve_device(self.device)


@dataclass(frozen=True)
class Case:
    """One implementation for one batch size and length."""

    config: GuidingBenchConfig
    implementation: str
    batch: int
    length: int


def bench(config: GuidingBenchConfig, out_dir: Path | None, command: str) -> bool:
    """Run the benchmark, print its tables and write its report; see `run_benchmark`."""
    compiled = ", compiled models" if config.compile else ""
    description = (
        f"A training step of BERT, {config.layers} layers, {config.heads} heads, autocast to {config.dtype}, AdamW"
        f"{compiled}. Times are relative to the unguided step in the same round (median of {config.repeats} rounds); "
        "on a GPU, the time of its kernels is given too. Memory is the peak of one step, without the model and its "
        "inputs."
    )
    header = ReportHeader("guiding", description, command, config.torch_device)
    num_steps = len(config.shapes) * (len(IMPLEMENTATIONS) + 1)
    return run_benchmark(lambda progress: run(config, progress), num_steps, header, out_dir)


def run(config: GuidingBenchConfig, progress: Callable[[str], None]) -> Iterator[Measurement]:
    """Yield the measurements, shape by shape. Calls `progress` at every step."""
    device = config.torch_device
    for shape in config.shapes:
        batch, length = map(int, shape.split("x"))
        results = {
            implementation: Measurement(scheme=f"batch {batch}", implementation=implementation, length=length)
            for implementation in IMPLEMENTATIONS
        }
        workloads: dict[str, measure.Workload] = {}
        for implementation, result in results.items():
            progress(f"{shape}: {implementation}, memory")
            case = Case(config, implementation, batch, length)
            try:
                if device.type == "cpu":
                    result.peak_mib = measure.cpu_peak_mib(build_step, case)
                workload = build_step(case)
                workload()
                if device.type == "cuda":
                    result.peak_mib = measure.cuda_peak_mib(workload, device)
                    result.kernel_ms = measure.cuda_kernel_ms(workload, device)
                workloads[implementation] = workload
            except Exception as error:
                result.peak_mib, result.note = None, shorten_error(error)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
        progress(f"{shape}: time")
        if BASELINE in workloads:
            samples = measure.time_interleaved(workloads, config.repeats, device)
            for implementation, seconds in samples.items():
                results[implementation].set_times(seconds, samples[BASELINE], absolute=device.type == "cuda")
        yield from results.values()


def build_step(case: Case) -> Callable[[], Tensor]:
    """Return a function that runs one training step and returns its loss."""
    from transformers import BertConfig, BertForSequenceClassification

    config, device = case.config, case.config.torch_device
    torch.manual_seed(0)
    bert_config = BertConfig(
        hidden_size=64 * config.heads,
        num_attention_heads=config.heads,
        num_hidden_layers=config.layers,
        intermediate_size=256 * config.heads,
        max_position_embeddings=max(512, case.length),
    )
    model: Any = BertForSequenceClassification(bert_config).train()
    model.to(device)
    if config.compile:
        model.compile()
    ids = torch.randint(1000, 20000, (case.batch, case.length), device=device)
    inputs = {"input_ids": ids, "labels": torch.randint(2, (case.batch,), device=device)}
    compute_loss = LOSS_FUNCTIONS[case.implementation](model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=device.type == "cuda")

    def step() -> Tensor:
        with torch.autocast(device.type, getattr(torch, config.dtype), enabled=config.dtype != "float32"):
            loss = compute_loss(inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def unguided_loss(model: Any) -> LossFunction:
    """Return the loss of the task, with SDPA."""
    model.set_attn_implementation("sdpa")
    return lambda inputs: model(**inputs).loss


def headwise_loss(model: Any) -> LossFunction:
    """Return the guided loss by headwise."""
    from headwise.guidance import guiding
    from headwise.guides import MapDiscrimination, PatternDecorrelation

    context = guiding(model, [MapDiscrimination(0.01), PatternDecorrelation(0.01)], check=False)
    guided = context.__enter__()

    def loss(inputs: dict[str, Tensor], _context: object = context) -> Tensor:  # keeps the context alive
        task_loss: Tensor = model(**inputs).loss
        return task_loss + guided.loss(task_loss)

    return loss


def eager_maps_loss(model: Any) -> LossFunction:
    """Return the guided loss, computed from the maps of eager attention."""
    model.set_attn_implementation("eager")

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        output = model(**inputs, output_attentions=True)
        received = torch.cat([weights.float().sum(dim=2) for weights in output.attentions], dim=1)
        received = torch.nn.functional.normalize(received, dim=-1)
        num_heads, num_tokens = received.shape[1:]
        gram = received @ received.mT
        mdg = (gram.logsumexp(dim=-1) - gram.diagonal(dim1=1, dim2=2)).mean()
        pdg = (gram.square().sum(dim=(1, 2)) - 2 * num_heads + num_tokens).mean() / num_heads**2
        total: Tensor = output.loss + 0.01 * mdg + 0.01 * pdg
        return total

    return loss


def retrofitted_loss(scheme: str) -> Callable[[Any], LossFunction]:
    """Return a function that adds a scheme to a model and returns the loss of the task."""

    def build(model: Any) -> LossFunction:
        from headwise.integrations import retrofit

        retrofit(model, scheme)
        return lambda inputs: model(**inputs).loss

    return build


LOSS_FUNCTIONS = {
    BASELINE: unguided_loss,
    "headwise, MDG and PDG": headwise_loss,
    "eager maps, MDG and PDG": eager_maps_loss,
    "headwise, distance-aware": retrofitted_loss("DistanceAware"),
    "headwise, rpr": retrofitted_loss("RelativePositions"),
}
IMPLEMENTATIONS = tuple(LOSS_FUNCTIONS)
