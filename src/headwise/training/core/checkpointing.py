"""A Trainer that goes on where it was cut off, and ends where one that was never cut off does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from headwise.errors import UserError
from headwise.training.core import distributed, run_dir
from headwise.training.core.callbacks import Progress
from headwise.training.core.distributed import first_only


def fit(trainer: Any, out: Path, *, resume: bool) -> TrainOutput:
    """Train in a run's folder.

    Args:
        trainer: a Hugging Face Trainer.
        out: the run's folder.
        resume: go on from the last whole checkpoint, if there is one.
    """
    Progress.replace_in(trainer)
    trainer.add_callback(Checkpoints)
    checkpoint = None
    if resume:
        first_only(lambda: run_dir.remove_broken_checkpoints(out))
        checkpoint = run_dir.last_checkpoint(out)
    with readable(trainer, checkpoint):
        steps = stopped_after(checkpoint)
    if steps:
        trainer.args.max_steps = steps  # else the Trainer, asked to go on, would train another epoch
    with Progress.ended_in(trainer), readable(trainer, checkpoint), loaders_alive():
        done: TrainOutput = trainer.train(resume_from_checkpoint=checkpoint)
    return done


@contextmanager
def readable(trainer: Any, checkpoint: str | None) -> Iterator[None]:
    """A checkpoint that cannot be gone on from is a mistake: where it was damaged, or is not what headwise wrote."""
    before = trainer.state.global_step
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        begun = trainer.state.global_step > max(before, steps_of(checkpoint))
        if checkpoint is None or begun or isinstance(error, OSError | torch.OutOfMemoryError):
            raise
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{checkpoint}: cannot be gone on from ({why}); without it the one before is taken") from error


@contextmanager
def loaders_alive() -> Iterator[None]:
    """A process that makes batches may die; torch notices."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        why = str(error).splitlines()[0]
        raise UserError(
            f"a process that makes batches died ({why}); --resume goes on from the last checkpoint"
        ) from error


def steps_of(checkpoint: str | None) -> int:
    return 0 if checkpoint is None else int(Path(checkpoint).name.removeprefix("checkpoint-"))


def whole_weights(trainer: Any) -> dict[str, Any] | None:
    """All weights of a model that is in parts, one in each process (FSDP); None of one that is not.

    Every process must ask, together.
    """
    if not trainer.is_fsdp_enabled:
        return None
    weights: dict[str, Any] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return weights


def stopped_after(checkpoint: str | None) -> int:
    """The steps after which training had stopped when the checkpoint was written, or 0."""
    if checkpoint is None:
        return 0
    found = json.loads(Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8"))
    control = found["stateful_callbacks"]["TrainerControl"]["args"]
    return int(found["global_step"]) if control["should_training_stop"] else 0


class Checkpoints(TrainerCallback):
    """Makes checkpoints whole, and the best one known: wherever the folder is now, and to every process."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.best_global_step:
            state.best_model_checkpoint = str(Path(args.output_dir, f"checkpoint-{state.best_global_step}"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A loss that is logged is a mean since the last log: with one at each checkpoint, none goes across it.
        control.should_log = control.should_log or control.should_save

    on_epoch_end = on_step_end

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        distributed.state().wait_for_everyone()
        self.on_train_begin(args, state, control)  # the Trainer looks for it too early where processes write parts
        if state.is_world_process_zero:
            written = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (written / "training_args.bin").unlink(missing_ok=True)  # a pickle, and run.yaml says it all
            run_dir.complete(written)
