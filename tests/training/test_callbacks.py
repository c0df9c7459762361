"""What the progress bar of a run prints at its end."""

import logging
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from headwise.training.core.callbacks import ProgressBar


@pytest.mark.parametrize(
    ("max_steps", "expected"),
    [(-1, "after epoch 4 of 30"), (300, "after step 40 of 300")],
    ids=["epochs", "steps"],
)
def test_early_stopping_is_printed_in_epochs_or_in_steps(
    max_steps: int, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    args = SimpleNamespace(max_steps=max_steps, num_train_epochs=30.0)
    state = TrainerState(epoch=4.0, global_step=40, max_steps=300, best_global_step=10, is_world_process_zero=True)
    with caplog.at_level(logging.INFO, "headwise"):
        bar = ProgressBar()
        bar.on_train_begin(args, state, None)
        bar.on_train_end(args, state, None)
    assert caplog.messages[-1] == f"  epoch 1, the best on dev, is kept; stopped early, {expected}"
