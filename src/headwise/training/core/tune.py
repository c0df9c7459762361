"""`--tune`: a search of the learning rate on dev, before the run.

Every rate is tried with the initial weights of the run and at most `TRIAL_STEPS` steps. The test split is not used.
The trials are stored in `tuning.json` one by one, so that an interrupted search continues with the next one.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.small_files import read_json
from headwise.training.core import run_dir
from headwise.training.core.distributed import main_process_only, state
from headwise.training.core.verdict import LOWER_IS_BETTER

logger = logging.getLogger(__name__)

TUNING = "tuning.json"

#: Multiples of the default learning rate, nearest first: of rates with the same result, the first is chosen.
FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)
#: The maximum number of optimizer steps of a trial.
TRIAL_STEPS = 500


def tune_learning_rate(
    default: float, metric: str, run_trial: Callable[[float], dict[str, float]], out_dir: Path
) -> dict[str, Any]:
    """Try several learning rates and return the contents of `tuning.json`.

    All processes of a distributed run call this function.

    Args:
        default: the learning rate that a run without `--tune` has.
        metric: the metric of dev that decides.
        run_trial: trains with a learning rate and returns the metrics of dev.
        out_dir: the run directory.

    Raises:
        UserError: no trial has a finite result.
    """
    rates = [float(f"{factor * default:.3g}") for factor in FACTORS]
    record = read_tuning(out_dir) or {"metric": metric, "max_steps": TRIAL_STEPS, "trials": []}
    trials: list[dict[str, Any]] = record["trials"]
    logger.info("--tune: %d trials of at most %d steps each; %s on dev decides", len(rates), TRIAL_STEPS, metric)
    tried = {trial["learning_rate"] for trial in trials}
    if tried:
        logger.info("  resumed after trial %d of %d", len(tried), len(rates))
    for number, rate in enumerate(rates, 1):
        if rate in tried:
            continue
        value = try_rate(rate, metric, run_trial)
        trials.append({"learning_rate": rate, "value": value})
        main_process_only(lambda: run_dir.atomic_write(out_dir / TUNING, run_dir.to_json(record)))
        result = "not finite" if value is None else f"{value:.4f}"
        logger.info("  trial %d of %d: learning rate %g: dev %s %s", number, len(rates), rate, metric, result)
    record["chosen"] = choose_rate(trials, metric)
    main_process_only(lambda: run_dir.atomic_write(out_dir / TUNING, run_dir.to_json(record)))
    logger.info("  chosen: learning rate %g", record["chosen"])
    return record


def try_rate(rate: float, metric: str, run_trial: Callable[[float], dict[str, float]]) -> float | None:
    """Return the metric of one trial, or None if its loss or metric is not finite."""
    try:
        value = run_trial(rate)[f"eval_{metric}"]
    except UserError as error:
        if "finite" not in str(error) and " is nan" not in str(error) and " is inf" not in str(error):
            raise
        return None
    return value if math.isfinite(value) else None


def choose_rate(trials: list[dict[str, Any]], metric: str) -> float:
    """Return the learning rate of the best trial; of several, the first.

    Raises:
        UserError: no trial has a finite result.

    Example:
        >>> choose_rate([{"learning_rate": 1e-4, "value": 0.8}, {"learning_rate": 2e-4, "value": 0.8}], "accuracy")
        0.0001
    """
    finite = [trial for trial in trials if trial["value"] is not None]
    if not finite:
        raise UserError("--tune: the loss is not finite with any learning rate; check the data")
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return float(max(finite, key=lambda trial: sign * trial["value"])["learning_rate"])


def read_tuning(out_dir: Path) -> dict[str, Any] | None:
    """Return the contents of `tuning.json`, or None if the run directory has none."""
    path = out_dir / TUNING
    if not path.is_file():
        return None
    record: dict[str, Any] = read_json(path)
    return record


def describe_tuning(record: dict[str, Any]) -> str:
    """Return a line on the search, for `run.yaml` and the model card."""
    rates = ", ".join(f"{trial['learning_rate']:g}" for trial in record["trials"])
    return (
        f"--tune chose learning rate {record['chosen']:g} of {rates} by {record['metric']} on dev, "
        f"after at most {record['max_steps']} steps each"
    )


def run_short(trainer: Any) -> dict[str, float]:
    """Train for at most `TRIAL_STEPS` steps without checkpoints, and return the metrics of dev."""
    from transformers import EarlyStoppingCallback
    from transformers.trainer_callback import PrinterCallback, ProgressCallback
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy

    for callback in (EarlyStoppingCallback, PrinterCallback, ProgressCallback):
        trainer.pop_callback(callback)
    arguments = trainer.args
    arguments.load_best_model_at_end = False
    arguments.save_strategy, arguments.eval_strategy = SaveStrategy.NO, IntervalStrategy.NO
    trainer.train()
    state().wait_for_everyone()
    metrics: dict[str, float] = trainer.evaluate()
    return metrics
