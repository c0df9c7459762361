"""Training settings for data of a given size, for options that the user did not set.

The rule was measured on eleven data sets with 64 to 29,000 rows (`benchmarks/results/2026-11-16-defaults`). The number
of rows is always known before training: data is read or memory-mapped as a whole, and never streamed.
"""

import logging
import math
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from headwise.training.core.config import EncoderConfig

logger = logging.getLogger(__name__)

#: A run is stopped early after this number of steps without improvement, but not before `MIN_PATIENCE` epochs, and not
#: later than after `MAX_PATIENCE` epochs.
PATIENCE_STEPS = 500
MIN_PATIENCE = 3
MAX_PATIENCE = 10

#: The number of dev trials of each method of a tuned study.
DEFAULT_TRIALS = 8

ConfigT = TypeVar("ConfigT", bound=EncoderConfig)


@dataclass(frozen=True)
class Settings:
    """Values for options of `EncoderConfig`."""

    learning_rate: float
    batch_size: int
    epochs: float
    warmup_steps: float


def choose_settings(num_rows: int, *, from_scratch: bool, is_pair: bool = False) -> Settings:
    """Return the settings for a number of training rows.

    Args:
        num_rows: the number of training rows.
        from_scratch: whether the model is trained from scratch; otherwise it is fine-tuned.
        is_pair: whether text pairs are classified or rated.

    Example:
        >>> choose_settings(200, from_scratch=False)
        Settings(learning_rate=5e-05, batch_size=8, epochs=23, warmup_steps=0.1)
        >>> choose_settings(2000, from_scratch=True)
        Settings(learning_rate=0.001, batch_size=32, epochs=20, warmup_steps=0.05)
    """
    if not from_scratch:
        learning_rate = 1e-4 if is_pair and num_rows >= 1000 else 5e-5
        return Settings(learning_rate, 8 if num_rows < 1000 else 16, clip(320 / math.sqrt(num_rows), 3, 40), 0.1)
    if num_rows < 300:
        return Settings(3e-3, 32, 40, 0.05)
    return Settings(1e-3, 32, clip(40_000 / num_rows, 5, 40), 0.05)


def clip(value: float, low: int, high: int) -> int:
    """Round a value and limit it to a range."""
    return min(high, max(low, round(value)))


def fill_unset(config: ConfigT, settings: Settings, num_rows: int) -> ConfigT:
    """Return the configuration with the settings for all options that are not set. Values of the user are kept.

    Args:
        config: the configuration of the user.
        settings: the values of unset options.
        num_rows: the number of training rows, from which the patience is computed.
    """
    values = {name: value for name, value in asdict(settings).items() if getattr(config, name) is None}
    if config.lr_scheduler_type == "constant":
        if config.warmup_steps:
            logger.warning(
                "--warmup-steps %g has no effect with --lr-scheduler-type constant; constant_with_warmup has a warm-up",
                config.warmup_steps,
            )
        values["warmup_steps"] = 0.0
    if config.early_stopping_patience is None:
        rows_per_step = (config.batch_size or settings.batch_size) * config.gradient_accumulation_steps
        steps_per_epoch = max(1, -(-num_rows // rows_per_step))
        values["early_stopping_patience"] = clip(PATIENCE_STEPS / steps_per_epoch, MIN_PATIENCE, MAX_PATIENCE)
    return replace(config, **values)


def describe_choice(config: EncoderConfig, resolved: EncoderConfig, num_rows: int) -> str:
    """Return a line with the settings that were chosen, or an empty string if the user set all of them.

    Args:
        config: the configuration of the user.
        resolved: the result of `fill_unset`.
        num_rows: the number of training rows.

    Example:
        >>> config = EncoderConfig(learning_rate=1e-4)
        >>> describe_choice(config, fill_unset(config, choose_settings(200, from_scratch=False), 200), 200)
        'batch size 8, 23 epochs, warm-up 0.1: chosen for 200 training rows'
    """
    texts = {
        "learning_rate": "learning rate {:g}",
        "batch_size": "batch size {}",
        "epochs": "{:g} epochs",
        "warmup_steps": "warm-up {:g}",
    }
    if resolved.lr_scheduler_type == "constant":
        del texts["warmup_steps"]
    chosen = [text.format(getattr(resolved, name)) for name, text in texts.items() if getattr(config, name) is None]
    return f"{', '.join(chosen)}: chosen for {num_rows:,} training rows" if chosen else ""
