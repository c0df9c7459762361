"""Progress of a run: one progress bar, and one log line per evaluation on dev."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from headwise.training.core.result_tables import format_metric

logger = logging.getLogger(__name__)

_EXTRA_CALLBACKS: ContextVar[tuple[TrainerCallback, ...]] = ContextVar("_EXTRA_CALLBACKS", default=())

#: Values that the Trainer logs with the metrics of dev and that are not shown.
HIDDEN_METRICS = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}


@contextmanager
def extra_callbacks(*callbacks: TrainerCallback) -> Iterator[None]:
    """Add callbacks to all runs in this context, such as those of a study."""
    token = _EXTRA_CALLBACKS.set((*_EXTRA_CALLBACKS.get(), *callbacks))
    try:
        yield
    finally:
        _EXTRA_CALLBACKS.reset(token)


class ProgressBar(ProgressCallback):
    """The Trainer's progress bar with the current losses; metrics of dev are logged."""

    unprinted: str = ""  # metrics of dev whose checkpoint is not complete yet

    @classmethod
    def install(cls, trainer: Any) -> None:
        """Replace the Trainer's own progress callbacks, and add those of `extra_callbacks`."""
        replaced = trainer.pop_callback(ProgressCallback)
        trainer.pop_callback(PrinterCallback)
        if replaced is not None:
            trainer.add_callback(cls)
        for callback in _EXTRA_CALLBACKS.get():
            trainer.add_callback(callback)

    @classmethod
    @contextmanager
    def close_at_end(cls, trainer: Any) -> Iterator[None]:
        """Close the bar also after an error, so that messages are printed below it."""
        try:
            yield
        finally:
            for callback in trainer.callback_handler.callbacks:
                bar: Any = getattr(callback, "training_bar", None)
                if bar is not None:
                    bar.close()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and state.global_step:
            step, total = f"{state.global_step:,}", f"{state.max_steps:,}"
            logger.info("resumed after epoch %.4g, step %s of %s", state.epoch, step, total)
        super().on_train_begin(args, state, control, **kwargs)

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """Show no second bar for evaluations."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        bar: Any = self.training_bar
        if not state.is_world_process_zero or bar is None or logs is None:
            return
        if "loss" in logs:
            guides = {name.removeprefix("guide/"): x for name, x in logs.items() if name.startswith("guide/")}
            losses = {"loss": logs.get("task_loss", logs["loss"])}
            losses |= {name: x for name, x in guides.items() if not name.endswith("/weight")}
            bar.set_postfix({name: f"{float(x):.3g}" for name, x in losses.items()})
        metrics = {name.removeprefix("eval_"): x for name, x in logs.items() if name.startswith("eval_")}
        shown = {name: x for name, x in metrics.items() if name not in HIDDEN_METRICS and isinstance(x, float)}
        if shown:
            line = ", ".join(f"{name} {format_metric(name, x)}" for name, x in shown.items())
            self.unprinted = f"  epoch {round(logs.get('epoch', 0), 4):g}: dev {line}"

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the metrics of dev once the checkpoint is complete. A resumed run so logs no epoch twice."""
        bar: Any = self.training_bar
        if self.unprinted and bar is not None:
            with bar.external_write_mode(file=sys.stderr):
                logger.info("%s", self.unprinted)
        self.unprinted = ""

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_save(args, state, control)
        super().on_train_end(args, state, control, **kwargs)
        if state.is_world_process_zero and state.best_global_step:
            steps_per_epoch = state.global_step / state.epoch
            kept = f"epoch {state.best_global_step / steps_per_epoch:.4g}, the best on dev, is kept"
            is_early = state.global_step < state.max_steps
            if args.max_steps > 0:  # the number of epochs is not used
                end = f"step {state.global_step:,} of {args.max_steps:,}"
            else:
                end = f"epoch {state.epoch:.4g} of {args.num_train_epochs:.4g}"
            logger.info("  %s%s", kept, f"; stopped early, after {end}" if is_early else "")


class TrainingTimer(TrainerCallback):
    """Measures the time of training steps, without evaluations, checkpoints and the preparation of the Trainer.

    Attributes:
        seconds: the time of all steps so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start: float | None = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._start is None:  # after an evaluation within the epoch
            self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._stop()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._start is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # kernels of the last steps may still run
            self.seconds += time.perf_counter() - self._start
            self._start = None


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the loading messages and progress bars of transformers."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()
