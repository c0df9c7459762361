"""Power of a comparison, before its runs: the smallest difference that it is likely to detect.

The difference of two methods for one seed is the mean over n test rows of differences with the standard deviation r,
plus an effect of the seed with the standard deviation s. Its standard deviation over seeds is therefore

    √(r² / n + s²)

from which `statistics.min_detectable_difference` computes the difference that the paired t-test over seeds detects.
Before the first run, r and s are assumed. If two methods disagree on a share d of the rows and are equally good, r is
√d. After the trials of a tuned study, r is measured on dev.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwise.errors import UserError
from headwise.studies import statistics
from headwise.studies.analysis import Metric, map_baselines
from headwise.studies.plan import Result
from headwise.studies.study import Study
from headwise.studies.tuning import choose_candidates, dev_metric, get_tuned_methods, select_final
from headwise.tasks import Task
from headwise.training.core.config import RunConfig
from headwise.training.registry import get_task_type

logger = logging.getLogger(__name__)

#: The share of test rows on which two methods are assumed to disagree.
DISAGREEMENT = 0.1

#: The assumed standard deviation of a row's difference, by label type, and what is assumed. Ratings have no unit that
#: an assumption could be based on.
ROW_STDS = {
    **dict.fromkeys(
        ("classification", "multi-label", "tokens"),
        (100 * math.sqrt(DISAGREEMENT), f"the methods disagree on {DISAGREEMENT:.0%} of the rows"),
    ),
    "ranking": (20.0, "the MRR of a query differs by 0.2"),
    "clicks": (20.0, "the AUC of an impression differs by 0.2"),
    "translation": (16.0, "a test set of 1,000 sentences determines differences up to 0.5 BLEU"),
}

#: The assumed standard deviation of the effect of seeds, in points or BLEU.
SEED_STD = 0.5

#: The study's value that says whether its power could be measured. It is there once the trials have ended.
MEASURED = "power_is_measured"

#: The study's value with the number of seeds of each task for which the power was stated.
STATED_SEEDS = "power_seeds"


@dataclass(frozen=True)
class EvaluationSet:
    """A test set and its metric.

    Args:
        num_rows: the number of rows, queries, impressions or sentences.
        metric: the metric.
        label_type: the type of the labels.
    """

    num_rows: int
    metric: Metric
    label_type: str


def load_test_set(config: RunConfig) -> EvaluationSet:
    """Load the data of a run and return the size of its test set, or of dev if there is none.

    Raises:
        UserError: the data cannot be loaded.
    """
    data: Any = get_task_type(config.task).load_data(config)
    holders = [getattr(data, name) for name in ("examples", "log", "pairs") if hasattr(data, name)]
    splits: Mapping[str, Any] = holders[0].splits
    name = next((name for name in splits if name not in ("train", "dev")), "dev")
    if name not in splits:
        raise UserError("the data has neither test nor dev")
    rows = splits[name]
    num_rows = len(set(rows["query"])) if data.label_type == "ranking" else len(rows)
    higher_is_better = Task(name=data.task_name, label_type=data.label_type, about="").higher_is_better
    return EvaluationSet(num_rows, Metric(data.primary_metric, higher_is_better, name), data.label_type)


def check_test_sets(configs: Mapping[str, RunConfig]) -> None:
    """Load the data of each task once, before every run of a study fails to load it.

    Args:
        configs: the configuration of a run of each task.

    Raises:
        UserError: the data of a task cannot be loaded.
    """
    for task, config in configs.items():
        try:
            load_test_set(config)
        except UserError:
            raise
        except Exception as error:  # the first run reports it with its log
            logger.debug("%s: the data cannot be loaded: %s", task, error)


def expected_std(row_std: float, num_rows: int, seed_std: float = SEED_STD) -> float:
    """Return the standard deviation over seeds of the difference of two methods.

    Args:
        row_std: the standard deviation of a row's difference.
        num_rows: the number of test rows.
        seed_std: the standard deviation of the effect of seeds.

    Example:
        >>> round(expected_std(100 * math.sqrt(0.1), 1000, 0.5), 2)  # 10% of 1,000 rows, in points
        1.12
    """
    return math.hypot(row_std / math.sqrt(num_rows), seed_std)


def describe_power(test_set: EvaluationSet, std: float, seeds: int, num_comparisons: int, assumption: str) -> str:
    """Return a sentence on the smallest difference that a comparison detects, and what this is based on."""
    metric = test_set.metric
    difference = statistics.min_detectable_difference(std, seeds, num_comparisons=num_comparisons)
    if difference is None:
        return "One seed allows no statistical statement."
    correction = f" after correction for {num_comparisons} comparisons" if num_comparisons > 1 else ""
    if metric.unit == "points" and difference >= 100:
        return (
            f"With {seeds} seeds and {test_set.num_rows:,} {row_name(test_set.label_type)}, no difference can be seen."
        )
    size = f"{difference:.{1 if metric.digits == 2 else metric.digits}f} {metric.unit}"
    text = (
        f"With {seeds} seeds and this test set ({test_set.num_rows:,} {row_name(test_set.label_type)}), a difference "
        f"of {size} can be seen ({statistics.POWER:.0%} power, paired t-test at {statistics.ALPHA:.0%}{correction}). "
        f"{assumption}"
    )
    needed = statistics.min_seeds(num_comparisons)
    return text if seeds >= needed else f"{text} The permutation test needs at least {needed} seeds."


def row_name(label_type: str) -> str:
    """Return what the rows of a test set are."""
    return {"ranking": "queries", "clicks": "impressions", "translation": "sentences"}.get(label_type, "rows")


def log_expected_power(study: Study) -> None:
    """Log the power of a study whose runs have not started, from the size of its test sets and stated assumptions.

    A study that got more seeds states it again, unless its power is measured.
    """
    statuses = study.trials.statuses()
    has_started = any(status.state == "finished" for status in statuses)
    if has_started and (is_stated(study) or study.metadata.get(MEASURED)):
        return
    lines = []
    for task, config in {status.run.task: status.run.config for status in reversed(statuses)}.items():
        baselines = list_baselines(study, task)
        if not baselines:  # a study of one method, such as da-figure6
            continue
        try:
            test_set = load_test_set(config)
        except Exception as error:  # the first run reports it
            logger.debug("%s: the power is unknown: %s", task, error)
            continue
        if test_set.label_type not in ROW_STDS:
            lines.append(f"{task}: The power is unknown before the first runs, because ratings have no common scale.")
            continue
        row_std, reason = ROW_STDS[test_set.label_type]
        unit = test_set.metric.unit
        assumption = (
            f"This assumes that {reason}, and that seeds change the difference by a further {SEED_STD:g} {unit} "
            "(standard deviation)."
        )
        std = expected_std(row_std, test_set.num_rows)
        sentence = describe_power(test_set, std, count_seeds(study, task), len(baselines), assumption)
        lines.append(f"{task}: {sentence}")
    log_lines(study, lines)


def log_measured_power(study: Study) -> None:
    """Log the power of a tuned study after its trials, from the differences of the chosen settings on dev.

    It is logged once for each number of seeds.
    """
    if MEASURED in study.metadata and is_stated(study):
        return
    choices = choose_candidates(study)
    lines = []
    for task in dict.fromkeys(choice.tuned.task for choice in choices):
        chosen = {choice.tuned.method: choice.results[0] for choice in choices if choice.tuned.task == task}
        baselines = {name: other for name, other in list_baselines(study, task).items() if {name, other} <= set(chosen)}
        row_std = measure_row_std([(chosen[name], chosen[other]) for name, other in baselines.items()])
        if row_std is None:
            continue
        config = next(status.run.config for status in study.trials.statuses() if status.run.task == task)
        try:
            test_set = load_test_set(config)  # trials are not evaluated on it
        except Exception as error:  # the next run reports it
            logger.debug("%s: the power is unknown: %s", task, error)
            continue
        seed_std = 0.0 if test_set.label_type == "regression" else SEED_STD
        std = expected_std(row_std, test_set.num_rows, seed_std)
        measurement = describe_measurement(seed_std, test_set.metric.unit)
        sentence = describe_power(test_set, std, count_seeds(study, task), len(baselines), measurement)
        lines.append(f"{task}: {sentence}")
    log_lines(study, lines)
    study.trials.set_metadata(MEASURED, bool(lines))


def describe_measurement(seed_std: float, unit: str) -> str:
    """Return what the power after the trials is based on.

    >>> describe_measurement(0.0, "rmse")
    'This is based on the differences of the methods on dev in their trials. It leaves out the effect of seeds.'
    """
    based_on = "This is based on the differences of the methods on dev in their trials"
    if not seed_std:
        return f"{based_on}. It leaves out the effect of seeds."
    return f"{based_on}, and assumes that seeds change them by a further {seed_std:g} {unit}."


def measure_row_std(pairs: Sequence[tuple[Result, Result]]) -> float | None:
    """Measure the standard deviation of a row's difference on dev, by a paired bootstrap.

    Args:
        pairs: runs of a method and of its baseline.

    Returns:
        The largest standard deviation of all pairs in the unit of the metric; None if it cannot be measured, or if
        all rows differ equally, which does not show that no larger differences occur on test.
    """
    from headwise.studies.bootstrap import bootstrap_primary_metric, count_rows

    measured = []
    for pair in pairs:
        num_dev_rows = count_rows(pair[0], "dev")
        samples = bootstrap_primary_metric(pair, "dev") if num_dev_rows else None
        if samples is None:
            return None
        error = dev_metric(pair[0]).scale * float((samples[:, 0] - samples[:, 1]).std())
        measured.append(error * math.sqrt(num_dev_rows))
    return max(measured, default=0.0) or None


def list_baselines(study: Study, task: str) -> dict[str, str]:
    """Return the baseline of each method of a task that is compared."""
    tuned = [x.method for x in get_tuned_methods(study) if x.task == task]
    runs = select_final(study, [status.run for status in study.trials.statuses()])
    names = list(dict.fromkeys([*tuned, *(run.method for run in runs if run.task == task)]))
    return map_baselines(names, study.metadata["baseline"], study.metadata["controls"])


def count_seeds(study: Study, task: str) -> int:
    """Return the number of seeds of a study."""
    if "seeds" in study.metadata:
        return int(study.metadata["seeds"])
    return len({status.run.seed for status in study.trials.statuses() if status.run.task == task})


def count_all_seeds(study: Study) -> dict[str, int]:
    """Return the number of seeds of each task."""
    return {task: count_seeds(study, task) for task in sorted({x.run.task for x in study.trials.statuses()})}


def is_stated(study: Study) -> bool:
    """Return whether the power was stated for the number of seeds that the study has now."""
    return bool(study.metadata.get(STATED_SEEDS) == count_all_seeds(study))


def log_lines(study: Study, lines: Sequence[str]) -> None:
    """Log the power and store it for the report, with the number of seeds that it is stated for."""
    for line in lines:
        logger.info("%s", line)
    if lines:
        study.trials.set_metadata("power", list(lines))
    study.trials.set_metadata(STATED_SEEDS, count_all_seeds(study))
