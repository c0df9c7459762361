"""The TrainingArguments of the Hugging Face Trainer."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import is_tensorboard_available

from headwise.tasks import Task, TrainingDefaults
from headwise.training.core import run_dir
from headwise.training.core.config import RunConfig
from headwise.training.core.distributed import is_on_cpu, state
from headwise.training.core.environment import uses_bfloat16
from headwise.training.core.pretrained import is_scheme


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
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        **options,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one GPU per process: use torchrun instead of DataParallel
    return arguments


def build_task_arguments(config: RunConfig, task: Task, out_dir: Path, *, has_dev: bool) -> TrainingArguments:
    """Return the arguments of a run with the training defaults of a task.

    Args:
        config: the run's configuration.
        task: the task.
        out_dir: the run directory.
        has_dev: whether to evaluate on dev after each epoch and keep the best checkpoint.
    """
    defaults = get_defaults(config, task)
    batch_size = -(-get_batch_size(config, task) // state().num_processes)
    selection: dict[str, Any] = {}
    if has_dev:
        selection = {
            "eval_strategy": "epoch",
            "load_best_model_at_end": True,
            "metric_for_best_model": f"eval_{task.primary}",
            "greater_is_better": task.higher_is_better,
        }
    return build_arguments(
        config,
        out_dir,
        num_train_epochs=config.epochs or defaults.epochs,
        per_device_train_batch_size=batch_size,  # for the Trainer's logs; LengthGroupedTrainer builds the batches
        per_device_eval_batch_size=4 * batch_size,
        learning_rate=config.learning_rate or defaults.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.05,
        save_strategy="epoch",
        save_total_limit=2,
        dataloader_pin_memory=torch.cuda.is_available(),
        **selection,
    )


def get_defaults(config: RunConfig, task: Task) -> TrainingDefaults:
    """Return a task's training defaults for a model."""
    return task.from_scratch if is_scheme(config.model) else task.fine_tuning


def get_batch_size(config: RunConfig, task: Task) -> int:
    """Return the number of examples per step, over all processes."""
    return config.batch_size or get_defaults(config, task).batch_size
