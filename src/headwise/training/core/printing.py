"""The results that commands print to standard output."""

from shlex import quote
from typing import Any

from headwise.training.core.metrics import DETAILS
from headwise.training.core.result_tables import describe_thresholds, format_details, format_metric, select_split
from headwise.training.core.run_dir import RunResult

#: The arguments of `headwise predict` by label type, if they are not those of a file of examples.
PREDICT_ARGUMENTS = {
    "clicks": "LOG --out prediction.zip",
    "ranking": "QUERIES --documents DOCUMENTS --out RANKED",
    "translation": "FILE --out TRANSLATED",
}


def format_result(result: RunResult) -> str:
    """Return the metrics of a finished run and the command to use its model."""
    metrics = result.metrics
    lines = []  # long tables first, the verdict last
    if (split := select_split(metrics)) is not None:
        details = {name: metrics[name].get(split) for name in DETAILS}
        lines += format_details(details, metrics.get("labels", ()), split)
    if thresholds := describe_thresholds(metrics):
        lines.append(thresholds)
    for split, values in metrics["metrics"].items():
        lines.append(format_metrics(split, values, metrics["primary_metric"], metrics["standard_error"][split]))
        lines += format_baselines(metrics["baselines"].get(split, {}), metrics["primary_metric"])
    lines += [f"  note: {note}" for note in metrics["baseline_notes"]]
    lines.append(f"Verdict on {metrics['verdict']}")
    arguments = PREDICT_ARGUMENTS.get(metrics["label_type"], "FILE --out LABELLED")
    lines.append(f"The model, its card, its predictions and a report (report.html) are in {result.run_dir}")
    lines.append(f"To use the model: headwise predict {quote(str(result.run_dir))} {arguments}")
    return "\n".join(lines)


def format_evaluation(evaluation: dict[str, Any]) -> str:
    """Return the result of an evaluation."""
    primary_metric = evaluation["primary_metric"]
    lines = [
        f"{evaluation['dataset']} ({evaluation['rows']:,} rows)",
        *format_details(evaluation, evaluation.get("labels", ()), "data"),
        format_metrics("metrics", evaluation["metrics"], primary_metric, evaluation["standard_error"]),
        *format_baselines(evaluation["baselines"], primary_metric),
        *(f"  note: {note}" for note in evaluation["baseline_notes"]),
        f"Verdict: {evaluation['verdict']}",
    ]
    return "\n".join(lines)


def format_baselines(baselines: dict[str, dict[str, float]], primary_metric: str) -> list[str]:
    """Return a line for each baseline."""
    return [f"  baseline {format_metrics(name, values, primary_metric)}" for name, values in baselines.items()]


def format_metrics(
    name: str, values: dict[str, float], primary_metric: str, standard_error: float | None = None
) -> str:
    """Return metrics in one line, the primary metric first.

    >>> format_metrics("test", {"macro_f1": 0.8, "accuracy": 0.9}, "accuracy", 0.01)
    'test: accuracy 0.9000 ± 0.0100, macro_f1 0.8000'
    >>> format_metrics("test", {"mrr": 0.5, "queries": 1300.0}, "mrr")
    'test: mrr 0.5000, queries 1,300'
    """
    error = "" if standard_error is None else f" ± {standard_error:.4f}"
    others = [f"{other} {format_metric(other, value)}" for other, value in values.items() if other != primary_metric]
    return f"{name}: {', '.join([f'{primary_metric} {values[primary_metric]:.4f}{error}', *others])}"
