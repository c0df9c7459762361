"""Training with checkpoints: a resumed run ends with the same weights as an uninterrupted one."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from headwise.errors import UserError
from headwise.small_files import read_json
from headwise.training.core import distributed, run_dir
from headwise.training.core.callbacks import ProgressBar
from headwise.training.core.distributed import main_process_only


def fit(trainer: Any, out_dir: Path, *, resume: bool) -> TrainOutput:
    """Train a model.

    Args:
        trainer: a Hugging Face Trainer.
        out_dir: the run directory.
        resume: continue from the last complete checkpoint, if there is one.
    """
    trainer.add_callback(CheckpointCallback)
    ProgressBar.install(trainer)  # after the other one, so that metrics are logged when their checkpoint is complete
    checkpoint = None
    if resume:
        main_process_only(lambda: run_dir.remove_broken_checkpoints(out_dir))
        checkpoint = run_dir.last_checkpoint(out_dir)
    with report_broken_checkpoint(trainer, checkpoint):
        final_step = get_final_step(checkpoint)
    if final_step:
        trainer.args.max_steps = final_step  # otherwise the Trainer would train one more epoch
    with ProgressBar.close_at_end(trainer), report_broken_checkpoint(trainer, checkpoint), report_dead_worker():
        output: TrainOutput = trainer.train(resume_from_checkpoint=checkpoint)
    return output


@contextmanager
def report_broken_checkpoint(trainer: Any, checkpoint: str | None) -> Iterator[None]:
    """Turn any error of loading a checkpoint into a UserError."""
    initial_step = trainer.state.global_step
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        step = trainer.state.global_step  # of a damaged trainer_state.json, it may be anything
        has_trained = isinstance(step, int) and step > max(initial_step, get_step(checkpoint))
        has_trained &= not isinstance(error, OverflowError)  # of numbers in trainer_state.json that are no steps
        is_disk_error = isinstance(error, OSError) and error.errno != errno.EINVAL  # torch's, for damaged archives
        if checkpoint is None or has_trained or is_disk_error or isinstance(error, torch.OutOfMemoryError):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{checkpoint}: cannot be resumed ({reason}); delete it to resume from the previous checkpoint"
        ) from error


@contextmanager
def report_dead_worker() -> Iterator[None]:
    """Turn the death of a DataLoader worker into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"a data loading process died ({reason}); --resume continues from the last checkpoint"
        ) from error


def get_step(checkpoint: str | None) -> int:
    return 0 if checkpoint is None else int(Path(checkpoint).name.removeprefix("checkpoint-"))


def get_final_step(checkpoint: str | None) -> int:
    """Return the step at which training had ended when the checkpoint was written, or 0 if it had not.

    Raises:
        ValueError: The logs of the checkpoint are no numbers. They become part of the run's metrics.
    """
    if checkpoint is None:
        return 0
    state = read_json(Path(checkpoint, "trainer_state.json"))
    for log in state["log_history"]:
        if not isinstance(log, dict) or not all(isinstance(value, int | float) for value in log.values()):
            raise ValueError(f"trainer_state.json: expected logs with a number for each name, got {log!r:.100}")
    control = state["stateful_callbacks"]["TrainerControl"]["args"]
    return int(state["global_step"]) if control["should_training_stop"] else 0


def gather_weights(trainer: Any) -> dict[str, Any] | None:
    """Return the full weights of a model that FSDP shards, or None for other models.

    All processes must call it at the same time.
    """
    if not trainer.is_fsdp_enabled:
        return None
    weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return weights


class CheckpointCallback(TrainerCallback):
    """Adds a manifest to each checkpoint, and locates the best one in a moved run directory and in all processes."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.best_global_step:
            state.best_model_checkpoint = str(Path(args.output_dir, f"checkpoint-{state.best_global_step}"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Logged losses are means since the last log. A log at each checkpoint makes them the same after a resume.
        control.should_log = control.should_log or control.should_save

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        distributed.state().wait_for_everyone()
        self.on_train_begin(args, state, control)  # the Trainer looks too early if processes write shards
        if state.is_world_process_zero:
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that run.yaml makes unnecessary
            run_dir.write_manifest(checkpoint)
