"""What a user sees while a model trains: one bar, and a line for each look at dev."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

WATCHERS: ContextVar[tuple[TrainerCallback, ...]] = ContextVar("WATCHERS", default=())


@contextmanager
def extra_callbacks(*watchers: TrainerCallback) -> Iterator[None]:
    """While it lasts, runs have these callbacks too: a study looks on."""
    before = WATCHERS.set(watchers)
    try:
        yield
    finally:
        WATCHERS.reset(before)


class Progress(ProgressCallback):
    """The Trainer's bar; losses go into it instead of below it, and dev figures get a line each."""

    @classmethod
    def replace_in(cls, trainer: Any) -> None:
        shown = trainer.pop_callback(ProgressCallback)
        trainer.pop_callback(PrinterCallback)
        if shown is not None:
            trainer.add_callback(cls)
        for watcher in WATCHERS.get():
            trainer.add_callback(watcher)

    @classmethod
    @contextmanager
    def ended_in(cls, trainer: Any) -> Iterator[None]:
        """The bar ends with what it shows, also where that fails: what is told then stands below it."""
        try:
            yield
        finally:
            for callback in trainer.callback_handler.callbacks:
                bar: Any = getattr(callback, "training_bar", None)
                if bar is not None:
                    bar.close()

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """No bar of its own: it is over in a moment."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        bar: Any = self.training_bar
        if not state.is_world_process_zero or bar is None or logs is None:
            return
        if "loss" in logs:
            guides = {name.removeprefix("guide/"): x for name, x in logs.items() if name.startswith("guide/")}
            told = {"loss": logs["loss"]} | {name: x for name, x in guides.items() if not name.endswith("/weight")}
            bar.set_postfix({name: f"{float(x):.3g}" for name, x in told.items()})
        figures = {name.removeprefix("eval_"): x for name, x in logs.items() if name.startswith("eval_")}
        hidden = {"runtime", "samples_per_second", "steps_per_second"}
        told = {name: f"{x:.4f}" for name, x in figures.items() if name not in hidden and isinstance(x, float)}
        if told:
            line = ", ".join(f"{name} {x}" for name, x in told.items())
            bar.write(f"  epoch {logs.get('epoch', 0):g}: dev {line}", file=sys.stderr)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without the libraries' reports on what is being loaded; we say what matters ourselves."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        transformers_logging.enable_progress_bar()
