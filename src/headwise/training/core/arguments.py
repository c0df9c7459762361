"""The TrainingArguments of the Hugging Face Trainer."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import (
    is_mlflow_available,
    is_tensorboard_available,
    is_wandb_available,
)

from headwise.errors import UserError
from headwise.training.core import run_dir
from headwise.training.core.config import EncoderConfig, RunConfig
from headwise.training.core.distributed import is_on_cpu, state
from headwise.training.core.environment import uses_bfloat16
from headwise.training.core.verdict import LOWER_IS_BETTER

#: Rows per forward pass in evaluations, relative to training.
EVAL_BATCH_FACTOR = 4

#: Whether the package of each tracker is installed.
TRACKERS = {
    "tensorboard": is_tensorboard_available,
    "wandb": is_wandb_available,
    "mlflow": is_mlflow_available,
}


def get_trackers(config: RunConfig) -> list[str]:
    """Return the trackers to log to: the one of `--report-to`, or tensorboard if it is installed.

    Raises:
        UserError: the tracker's package is not installed.
    """
    name = config.report_to
    if name is None:
        return ["tensorboard"] if is_tensorboard_available() else []
    if name == "none":
        return []
    if not TRACKERS[name]():
        raise UserError(f"--report-to {name}: the package is not installed; pip install {name}, or --report-to none")
    return [name]


def build_arguments(config: RunConfig, out_dir: Path, **options: Any) -> TrainingArguments:
    """Return the arguments that all pipelines share.

    Args:
        config: the run's configuration.
        out_dir: the run directory.
        options: further arguments of `TrainingArguments`.
    """
    arguments = TrainingArguments(
        output_dir=str(out_dir / run_dir.CHECKPOINTS),
        use_cpu=is_on_cpu(),
        bf16=uses_bfloat16(config),
        seed=config.seed,
        remove_unused_columns=False,
        restore_callback_states_from_checkpoint=True,  # patience continues after a resume
        logging_steps=0.05,
        logging_nan_inf_filter=False,  # it would hide losses that are not finite, and synchronize every step
        disable_tqdm=False,  # by default it depends on transformers' verbosity, which runs reduce
        report_to=get_trackers(config),
        **options,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one GPU per process: use torchrun instead of DataParallel
    return arguments


def checkpointing_arguments(is_enabled: bool) -> dict[str, Any]:
    """Return the arguments of gradient checkpointing, which transformers 5.23 calls activation checkpointing."""
    if not is_enabled:
        return {}
    is_renamed = any(field.name == "activation_checkpointing" for field in fields(TrainingArguments))
    name = "activation_checkpointing" if is_renamed else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def build_encoder_arguments(
    config: EncoderConfig, out_dir: Path, *, dev_metric: str | None, eval_batch_size: int | None = None, **options: Any
) -> TrainingArguments:
    """Return the arguments of a pipeline that trains an encoder.

    Args:
        config: the run's configuration, without unset values.
        out_dir: the run directory.
        dev_metric: the metric of dev that selects the best epoch; None without a dev split.
        eval_batch_size: rows per forward pass in evaluations, per process; by default four times those of
            training.
        options: further arguments of `TrainingArguments`.
    """
    assert config.epochs is not None
    assert config.learning_rate is not None
    assert config.warmup_steps is not None
    batch_size = -(-get_batch_size(config) // state().num_processes)
    selection: dict[str, Any] = {}
    if dev_metric is not None:
        selection = {
            "eval_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_{dev_metric}",
            "greater_is_better": dev_metric not in LOWER_IS_BETTER,
        }
    return build_arguments(
        config,
        out_dir,
        num_train_epochs=config.epochs,
        per_device_train_batch_size=batch_size,  # for the Trainer's logs; LengthGroupedTrainer builds the batches
        per_device_eval_batch_size=eval_batch_size or EVAL_BATCH_FACTOR * batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        save_strategy="epoch",
        save_total_limit=2,
        dataloader_pin_memory=torch.cuda.is_available(),
        **selection,
        **options,
    )


def get_batch_size(config: EncoderConfig) -> int:
    """Return the number of rows per forward pass, over all processes."""
    assert config.batch_size is not None
    return config.batch_size
