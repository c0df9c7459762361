"""Training with checkpoints: a resumed run ends with the same weights as an uninterrupted one."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from headwise.errors import UserError, first_line
from headwise.small_files import read_json
from headwise.training.core import distributed, run_dir
from headwise.training.core.callbacks import ProgressBar
from headwise.training.core.distributed import main_process_only
from headwise.training.core.run_settings import get_settings

#: The file of a checkpoint with the weights of the best epoch, if that epoch has no checkpoint of its own.
BEST_WEIGHTS = "best.safetensors"

#: The size in bytes up to which the scores of the best epoch on dev stay in memory.
MAX_KEPT_SCORES = 2**26


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
        if checkpoint is not None and Path(checkpoint, BEST_WEIGHTS).is_file():
            trainer.best_weights = load_file(Path(checkpoint, BEST_WEIGHTS))
    if final_step:
        trainer.args.max_steps = final_step  # otherwise the Trainer would train one more epoch
    with ProgressBar.close_at_end(trainer), report_broken_checkpoint(trainer, checkpoint), report_dead_worker():
        trainer.last_save = time.monotonic()
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
        reason = first_line(error)
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
        reason = first_line(error)
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


class CheckpointTrainer(Trainer):
    """A Trainer that keeps the weights of the best epoch in memory, and writes checkpoints at intervals.

    Runs of a study take seconds, and checkpoints of each epoch take a large part of them (`checkpoint_seconds`). A
    checkpoint also contains the best weights, so that a resumed run has them.

    Attributes:
        best_weights: the weights of the best epoch, if they are not those of a checkpoint.
        best_output: the output of the model on dev after training, if it was computed during training: the weights are
            those of the best epoch.
        last_save: the time of the last checkpoint, or of the start.
    """

    best_weights: dict[str, Tensor] | None = None
    best_output: EvalLoopOutput | None = None
    last_save: float = 0.0
    _epoch_output: EvalLoopOutput | None = None  # of the last epoch on dev
    _best_epoch_output: EvalLoopOutput | None = None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        output = super().evaluation_loop(*args, **kwargs)
        if self.is_in_train:
            is_small = getattr(output.predictions, "nbytes", MAX_KEPT_SCORES) < MAX_KEPT_SCORES
            self._epoch_output = output if is_small else None
        return output

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        interval = get_settings().checkpoint_seconds if self._needs_best_weights_only() else 0.0
        checkpoint = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        is_best = self.state.best_global_step == self.state.global_step
        if is_best:
            self.best_weights = copy_weights(self.model) if interval else None
            self._best_epoch_output = self._epoch_output
        if time.monotonic() - self.last_save < interval:
            return
        super()._save_checkpoint(model, trial)
        if self.best_weights is not None and not is_best and self.args.should_save:
            save_file(self.best_weights, checkpoint / BEST_WEIGHTS)
        self.last_save = time.monotonic()

    def _needs_best_weights_only(self) -> bool:
        """Return whether no checkpoint is read after training. Without dev, the last weights are used."""
        return self.args.load_best_model_at_end or self.args.eval_strategy == "no"

    def _load_best_model(self) -> None:
        if self.best_weights is None:
            super()._load_best_model()
        else:
            cast(nn.Module, self.model).load_state_dict(self.best_weights, strict=False)
        self.best_output = self._best_epoch_output


def copy_weights(model: Any) -> dict[str, Tensor]:
    """Return a copy of the weights that are trained, and of buffers, on the CPU."""
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    return {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
        if name not in frozen
    }


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
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and checkpoint.is_dir():  # it was not too early for one
            (checkpoint / "training_args.bin").unlink(missing_ok=True)  # a pickle that run.yaml makes unnecessary
            run_dir.write_manifest(checkpoint)
