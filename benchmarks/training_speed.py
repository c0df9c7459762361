"""One epoch of `headwise train`: our distance-aware model, the paper's formula in its place, torch's own encoder.

    python benchmarks/training_speed.py --task ag-news --data ag_news/ --vectors glove.npz --out OUT

The same words, batches, Trainer and model around the one layer that differs. Each trains two epochs, the second of
which is timed, and then some steps that are profiled. It writes `training_speed.md`.
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
from headwise.training.core.arguments import build_task_arguments
from headwise.training.core.batches import identity_collate
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.environment import get_versions
from headwise.training.text.data import load_data
from headwise.training.text.model import BuiltModel, build_model
from headwise.training.text.pipeline import TextTrainer, tokenize_splits

PROFILED = 20  # steps


class Naive(nn.Module):
    """Distance-aware attention as the paper prints it: whole maps, by torch's operators."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor, *_: Any, **options: Any) -> tuple[Tensor, None]:
        own, scheme = self.own, self.own.scheme
        q, k, v = (p(x).unflatten(-1, (own.heads, own.head_dim)).transpose(1, 2) for p in projections(own))
        places = torch.arange(x.shape[1], device=x.device)
        weighted = scheme.w[:, None, None] * (places[:, None] - places).abs()
        f = (1 + scheme.v.exp())[:, None, None] / (1 + (scheme.v[:, None, None] - weighted).exp())
        scores = (q @ k.mT).relu() * f / math.sqrt(own.head_dim)
        weights = scores.masked_fill(options["query_padding_mask"][:, None, None], -math.inf).softmax(dim=-1)
        heads = F.dropout(weights, own.dropout, self.training).to(v.dtype) @ v
        return own.out_proj(heads.transpose(1, 2).flatten(2)), None


def projections(own: Any) -> tuple[nn.Module, ...]:
    return own.q_proj, own.k_proj, own.v_proj


class Torch(nn.Module):
    """torch's encoder in the place of our layers; it knows no distances."""

    def __init__(self, ours: EncoderLayer, layers: int, dropout: float) -> None:
        super().__init__()
        inner = ours.feedforward[0]
        assert isinstance(inner, nn.Linear)
        layer = nn.TransformerEncoderLayer(
            ours.attention.dim, ours.attention.heads, inner.out_features, dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor, *, key_padding: Tensor) -> Tensor:
        encoded: Tensor = self.encoder(x, src_key_padding_mask=~key_padding)
        return encoded


def unchanged(model: Any) -> None:
    pass


def by_the_formula(model: Any) -> None:
    for layer in model.model.layers:
        layer.attention = Naive(layer.attention)


def by_torch(model: Any) -> None:
    layers = model.model.layers
    model.model.layers = nn.ModuleList([Torch(layers[0], len(layers), model.config.dropout)])


RIVALS: dict[str, Callable[[Any], None]] = {
    "headwise, distance-aware": unchanged,
    "the formula, distance-aware": by_the_formula,
    "nn.TransformerEncoder, no distances": by_torch,
}


class Clock(TrainerCallback):
    """When epochs begin and end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.tick()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.tick()

    def tick(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    @property
    def second_epoch(self) -> float:
        return self.times[3] - self.times[2]


def main() -> None:
    asked = parsed()
    settings = TextConfig(
        task=asked.task, data=(asked.data,), vectors=asked.vectors, model="distance-aware"
    ).resolve_paths()
    asked.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch, quiet_libraries():
        data = load_data(settings)
        task, examples = data.task, data.examples
        tokens = tokenize_splits(build_model(settings, task, examples)[1], examples, Path(scratch))["train"]
        rows = []
        for size in asked.batch_sizes:
            for name, change in RIVALS.items():
                set_seed(0)
                built = build_model(settings, task, examples)
                change(built[0])
                rows.append((size, name, *measured(partial(trainer_for, settings, task, built, tokens, size, scratch))))
                print(rows[-1][:3], flush=True)
    write(asked.out / "training_speed.md", asked, len(tokens), rows)


def trainer_for(
    settings: TextConfig, task: Any, built: BuiltModel, tokens: Any, size: int, scratch: str, **more: Any
) -> TextTrainer:
    args = build_task_arguments(settings, task, Path(scratch), has_dev=False)
    args.save_strategy, args.logging_steps, args.report_to = "no", 10**9, []
    for name, value in more.items():
        setattr(args, name, value)
    return TextTrainer(
        model=built[0],
        args=args,
        train_dataset=built[1].to_dataset(tokens),
        data_collator=identity_collate,
        batch_size=size,
        guides=(),
    )


def measured(make: Callable[..., TextTrainer]) -> tuple[float, str]:
    """Rows a second in the second epoch, and where a step's time goes."""
    clock = Clock()
    trainer = make(num_train_epochs=2)
    trainer.add_callback(clock)
    trainer.train()
    rows = len(trainer.train_dataset) / clock.second_epoch  # type: ignore[arg-type]
    trainer = make(num_train_epochs=1, max_steps=PROFILED)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as found:
        trainer.train()
    return rows, told(found)


def told(found: Any) -> str:
    events = found.key_averages()
    if not torch.cuda.is_available():
        return "; ".join(f"{e.key} {e.self_cpu_time_total / PROFILED / 1e3:.2f} ms" for e in longest(events, "cpu"))
    kernels = [e for e in events if e.device_type.name == "CUDA"]
    waits = sum(e.count for e in events if e.key in ("cudaStreamSynchronize", "cudaDeviceSynchronize"))
    total = sum(e.self_device_time_total for e in kernels) / PROFILED / 1e3
    top = "; ".join(
        f"{e.key[:40]} {e.self_device_time_total / PROFILED / 1e3:.2f} ms" for e in longest(kernels, "device")
    )
    return f"GPU busy {total:.2f} ms a step, {waits / PROFILED:.1f} waits a step; {top}"


def longest(events: Any, where: str) -> list[Any]:
    return sorted(events, key=lambda e: -getattr(e, f"self_{where}_time_total"))[:5]


def write(path: Path, asked: argparse.Namespace, count: int, rows: list[tuple[int, str, float, str]]) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    lines = [
        f"# One epoch of {asked.task}",
        f"{device}, {', '.join(f'{name} {version}' for name, version in get_versions().items())}",
        f"{count:,} rows, one layer of 16 heads of width 16, the second epoch, everything but evaluation included.",
        "| batch | model | rows a second | ms a step |\n|---|---|---|---|\n"
        + "\n".join(f"| {size} | {name} | {speed:,.0f} | {1e3 * size / speed:.1f} |" for size, name, speed, _ in rows),
        f"Where a step's time goes ({PROFILED} steps, profiled):",
        "\n".join(f"- batch {size}, {name}: {where}" for size, name, _, where in rows),
    ]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="ag-news")
    parser.add_argument("--data", required=True)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
