"""The contents of `metrics.json`, with the same keys for all pipelines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwise.training.core.environment import describe_device, get_peak_memory, get_versions
from headwise.training.core.verdict import judge

#: Results of classifiers besides their metrics, by split in `metrics.json`.
DETAILS = ("per_class", "confusion_matrix", "calibration")


@dataclass(frozen=True)
class SplitResult:
    """The evaluation of a model on one split.

    Args:
        metrics: values by name; the primary metric is one of them.
        standard_error: the standard error of the primary metric.
        predictions: one row per example with the columns `split` and `row` and what studies need to compare two runs
            example by example.
        fingerprint: a hash of the split (see `headwise.training.core.data_check`).
        baselines: the metrics of each baseline by its name.
        details: `per_class`, `confusion_matrix` and `calibration`, those that the label type has.
    """

    metrics: dict[str, float]
    standard_error: float
    predictions: pa.Table
    fingerprint: str
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a model on all splits, and the pipeline's own entries of `metrics.json`."""

    splits: dict[str, SplitResult]
    extras: dict[str, Any] = field(default_factory=dict)


def build_metrics(
    data: Any, bundle: Any, evaluation: Evaluation, *, model: str, trainer: Any, output: Any, train_seconds: float
) -> dict[str, Any]:
    """Return the contents of `metrics.json`.

    Args:
        data: the run's `RunData`.
        bundle: the run's `ModelBundle`.
        evaluation: the evaluation of the trained model.
        model: the `--model` option.
        trainer: the Trainer.
        output: the output of `Trainer.train`.
        train_seconds: the duration of the training, without evaluations and checkpoints.
    """
    splits = evaluation.splits
    return {
        "task": data.task_name,
        "label_type": data.label_type,
        "primary_metric": data.primary_metric,
        "metrics": {name: result.metrics for name, result in splits.items()},
        "standard_error": {name: result.standard_error for name, result in splits.items()},
        "baselines": {name: result.baselines for name, result in splits.items()},
        "baseline_notes": [],
        **{
            detail: {name: result.details[detail] for name, result in splits.items() if detail in result.details}
            for detail in DETAILS
        },
        "dataset": data.description,
        "fingerprints": {name: result.fingerprint for name, result in splits.items()},
        "notes": list(bundle.notes),
        "model": model,
        "parameters": count_parameters(bundle.model),
        "epochs": output.metrics.get("epoch"),
        "steps": output.global_step,
        "stopped_early": output.global_step < trainer.state.max_steps,
        "train_seconds": round(train_seconds, 2),
        "examples_per_second": round(output.metrics["train_samples_per_second"], 1),
        "peak_memory": get_peak_memory(),
        "device": describe_device(),
        "versions": get_versions(),
        "history": get_history(trainer),
        **evaluation.extras,
    }


def build_evaluation(
    *,
    dataset: str,
    num_rows: int,
    primary_metric: str,
    metrics: dict[str, float],
    standard_error: float,
    baselines: dict[str, dict[str, float]] | None = None,
    baseline_notes: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    verdict_standard_error: float | None = None,
    from_scratch: bool = False,
    can_tune: bool = True,
    **extras: Any,
) -> dict[str, Any]:
    """Return the result of `headwise evaluate`, with the same keys for all pipelines.

    Args:
        dataset: what was evaluated.
        num_rows: its number of rows.
        primary_metric: the primary metric.
        metrics: all metrics.
        standard_error: the standard error of the primary metric.
        baselines: the metrics of each baseline.
        baseline_notes: notes on them.
        run: the contents of the run's `metrics.json`, for the verdict.
        verdict_standard_error: the standard error of the run's `verdict_metric`, if it has one.
        from_scratch: whether the model was trained from scratch.
        can_tune: whether the type of task has `--tune`.
        extras: further results.
    """
    run = run or {}
    verdict = judge(
        metrics,
        baselines or {},
        primary_metric=run.get("verdict_metric") or primary_metric,
        standard_error=standard_error if verdict_standard_error is None else verdict_standard_error,
        most_frequent_label=run.get("most_frequent_label"),
        from_scratch=from_scratch,
        stopped_early=run.get("stopped_early", False),
        tuned="tuning" in run or not can_tune,
        confusion_matrix=extras.get("confusion_matrix"),
        labels=run.get("labels", ()),
    )
    return {
        "dataset": dataset,
        "rows": num_rows,
        "primary_metric": primary_metric,
        "metrics": metrics,
        "standard_error": standard_error,
        "baselines": baselines or {},
        "baseline_notes": list(baseline_notes),
        "verdict": verdict,
        **extras,
    }


def count_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def get_history(trainer: Any) -> list[dict[str, float | None]]:
    """Return the training losses and the evaluations on dev.

    Values that JSON does not have, such as an infinite norm of gradients in float16, are None.
    """
    return [
        {name: value if math.isfinite(value) else None for name, value in log.items()}
        for log in trainer.state.log_history
        if is_loss_or_metric(log)
    ]


def is_loss_or_metric(log: dict[str, Any]) -> bool:
    """Return whether an entry of the Trainer's log is a training loss or an evaluation on dev."""
    return "loss" in log or any(name.startswith("eval_") for name in log)
