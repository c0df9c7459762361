"""Speed of one epoch of `headwise train`: our distance-aware model, the paper's formula, and torch's encoder.

    python benchmarks/training_speed.py --task ag-news --data ag_news/ --vectors glove.npz --out OUT

Everything but the encoder layer is the same: tokens, batches, Trainer and the rest of the model. Each variant trains
for two epochs, of which the second is timed, and then for some profiled steps. It writes `training_speed.md`.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback, set_seed

from headwise.attention import EncoderLayer
from headwise.training import TextConfig
from headwise.training.core.arguments import build_encoder_arguments
from headwise.training.core.batches import identity_collate
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.environment import get_versions
from headwise.training.text.data import load_data
from headwise.training.text.model import BuiltModel, build_model
from headwise.training.text.pipeline import tokenize_splits
from headwise.training.text.trainer import TextTrainer

PROFILED_STEPS = 20


class NaiveAttention(nn.Module):
    """Distance-aware attention as in the paper, with whole maps and torch's operators. Uses our layer's parameters."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, *_: Any, **options: Any) -> tuple[Tensor, None]:
        layer, scheme = self.attention, self.attention.scheme
        projections = (layer.q_proj, layer.k_proj, layer.v_proj)
        q, k, v = (p(x).unflatten(-1, (layer.heads, layer.head_dim)).transpose(1, 2) for p in projections)
        positions = torch.arange(x.shape[1], device=x.device)
        weighted = scheme.w[:, None, None] * (positions[:, None] - positions).abs()
        f = (1 + scheme.v.exp())[:, None, None] / (1 + (scheme.v[:, None, None] - weighted).exp())
        scores = (q @ k.mT).relu() * f / math.sqrt(layer.head_dim)
        weights = scores.masked_fill(options["query_padding_mask"][:, None, None], -math.inf).softmax(dim=-1)
        output = F.dropout(weights, layer.dropout, self.training).to(v.dtype) @ v
        return layer.out_proj(output.transpose(1, 2).flatten(2)), None


class TorchEncoder(nn.Module):
    """torch's encoder instead of our layers, without distances."""

    def __init__(self, headwise_layer: EncoderLayer, layers: int, dropout: float) -> None:
        super().__init__()
        inner, attention = headwise_layer.feedforward[0], headwise_layer.attention
        assert isinstance(inner, nn.Linear)
        layer = nn.TransformerEncoderLayer(
            attention.embed_dim, attention.num_heads, inner.out_features, dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor, *, key_padding: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(x, src_key_padding_mask=~key_padding)
        return encoded


def keep_layers(model: Any) -> None:
    pass


def use_naive_attention(model: Any) -> None:
    for layer in model.model.layers:
        layer.attention = NaiveAttention(layer.attention)


def use_torch_encoder(model: Any) -> None:
    layers = model.model.layers
    model.model.layers = nn.ModuleList([TorchEncoder(layers[0], len(layers), model.config.dropout)])


#: Functions that change a model in place, by the name of the variant.
VARIANTS: dict[str, Callable[[Any], None]] = {
    "headwise, distance-aware": keep_layers,
    "the paper's formula, distance-aware": use_naive_attention,
    "nn.TransformerEncoder, no distances": use_torch_encoder,
}


class EpochTimer(TrainerCallback):
    """Records when epochs begin and end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.record_time()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.record_time()

    def record_time(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    @property
    def second_epoch_seconds(self) -> float:
        return self.times[3] - self.times[2]


def main() -> None:
    args = parse_args()
    config = TextConfig(
        task=args.task,
        data=(args.data,),
        vectors=args.vectors,
        model="distance-aware",
        learning_rate=1e-3,
        batch_size=64,
        epochs=10,
        warmup_steps=0.05,
    ).resolve_paths()
    args.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch_dir, quiet_libraries():
        data = load_data(config)
        task, examples = data.task, data.examples
        tokens = tokenize_splits(build_model(config, task, examples)[1], examples, Path(scratch_dir))["train"]
        measurements = []
        for batch_size in args.batch_sizes:
            for name, change_model in VARIANTS.items():
                set_seed(0)
                built = build_model(config, task, examples)
                change_model(built[0])
                build_trainer = partial(make_trainer, config, built, tokens, batch_size, scratch_dir)
                measurements.append((batch_size, name, *measure_training(build_trainer)))
                print(measurements[-1][:3], flush=True)
    write_report(args.out / "training_speed.md", args.task, len(tokens), measurements)


def make_trainer(
    config: TextConfig,
    built: BuiltModel,
    tokens: Any,
    batch_size: int,
    scratch_dir: str,
    **arguments: Any,
) -> TextTrainer:
    """Return a trainer; further arguments replace those of its training arguments."""
    training_args = build_encoder_arguments(config, Path(scratch_dir), dev_metric=None)
    training_args.save_strategy, training_args.logging_steps, training_args.report_to = "no", 10**9, []
    for name, value in arguments.items():
        setattr(training_args, name, value)
    return TextTrainer(
        model=built[0],
        args=training_args,
        train_dataset=built[1].to_dataset(tokens),
        data_collator=identity_collate,
        batch_size=batch_size,
        guides=(),
    )


def measure_training(build_trainer: Callable[..., TextTrainer]) -> tuple[float, str]:
    """Return the examples per second of the second epoch, and a summary of the profile."""
    timer = EpochTimer()
    trainer = build_trainer(num_train_epochs=2)
    trainer.add_callback(timer)
    trainer.train()
    examples_per_second = len(trainer.train_dataset) / timer.second_epoch_seconds  # type: ignore[arg-type]
    trainer = build_trainer(num_train_epochs=1, max_steps=PROFILED_STEPS)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler:
        trainer.train()
    return examples_per_second, summarize_profile(profiler)


def summarize_profile(profiler: Any) -> str:
    """Return the operators or kernels that take most time per step."""
    events = profiler.key_averages()
    if not torch.cuda.is_available():
        operators = longest_events(events, "cpu")
        return "; ".join(f"{e.key} {e.self_cpu_time_total / PROFILED_STEPS / 1e3:.2f} ms" for e in operators)
    kernels = [e for e in events if e.device_type.name == "CUDA"]
    num_waits = sum(e.count for e in events if e.key in ("cudaStreamSynchronize", "cudaDeviceSynchronize"))
    busy_ms = sum(e.self_device_time_total for e in kernels) / PROFILED_STEPS / 1e3
    slowest = "; ".join(
        f"{e.key[:40]} {e.self_device_time_total / PROFILED_STEPS / 1e3:.2f} ms"
        for e in longest_events(kernels, "device")
    )
    return f"GPU busy {busy_ms:.2f} ms per step, {num_waits / PROFILED_STEPS:.1f} synchronizations per step; {slowest}"


def longest_events(events: Any, device: str) -> list[Any]:
    """Return the five events with the largest own time on the CPU (`cpu`) or GPU (`device`)."""
    return sorted(events, key=lambda e: -getattr(e, f"self_{device}_time_total"))[:5]


def write_report(path: Path, task: str, num_examples: int, measurements: list[tuple[int, str, float, str]]) -> None:
    """Write the page of the results, and print it."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [
        f"# One epoch of {task}",
        f"{device}, {', '.join(f'{name} {version}' for name, version in get_versions().items())}",
        f"{num_examples:,} examples, one layer of 16 heads of width 16; time of the second epoch without evaluation.",
        "| batch | model | examples per second | ms per step |\n|---|---|---|---|\n"
        + "\n".join(
            f"| {batch_size} | {name} | {speed:,.0f} | {1e3 * batch_size / speed:.1f} |"
            for batch_size, name, speed, _ in measurements
        ),
        f"Operators that take most time per step ({PROFILED_STEPS} profiled steps):",
        "\n".join(f"- batch {batch_size}, {name}: {summary}" for batch_size, name, _, summary in measurements),
    ]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="ag-news")
    parser.add_argument("--data", required=True)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
