"""The report of a run: one HTML page with its results, and the figures as PNG."""

from pathlib import Path
from typing import Any

from headwise.training.core.result_tables import (
    build_metrics_table,
    build_per_class_table,
    describe_calibration,
    describe_thresholds,
    select_split,
)

REPORT, CONFUSION_MATRIX, RELIABILITY = "report.html", "confusion_matrix.png", "reliability.png"


def write_report(directory: Path, metrics: dict[str, Any], *, title: str) -> None:
    """Write the report and its figures.

    Args:
        directory: the directory, which exists.
        metrics: the contents of `metrics.json`.
        title: the heading.
    """
    from headwise.inspection import Page, draw_confusion_matrix, draw_reliability

    page = Page(title)
    page.text(metrics["dataset"])
    split = select_split(metrics)
    if split is None:
        page.text("The data has no dev or test split, so the model was not evaluated.")
    else:
        page.text(f"Verdict on {metrics['verdict']}.")
        page.section("Results")
        page.table(*build_metrics_table(metrics))
        for note in metrics["baseline_notes"]:
            page.text(f"Note: {note}.")
    if per_class := metrics["per_class"].get(split):
        page.section(f"Classes ({split})")
        page.table(*build_per_class_table(per_class))
        if thresholds := describe_thresholds(metrics):
            page.text(thresholds)
    if matrix := metrics["confusion_matrix"].get(split):
        figure = draw_confusion_matrix(matrix, metrics["labels"])
        png = page.figure(figure, f"Confusion matrix on {split}: rows are true labels, columns predicted labels.")
        (directory / CONFUSION_MATRIX).write_bytes(png)
    if calibration := metrics["calibration"].get(split):
        page.section("Calibration")
        page.text(describe_calibration(metrics, split))
        figure = draw_reliability(calibration["bins"], calibration["ece"])
        png = page.figure(
            figure, f"Reliability on {split}: bars below the line are predictions that are too confident."
        )
        (directory / RELIABILITY).write_bytes(png)
    add_curves(page, metrics)
    page.write(directory / REPORT)


def add_curves(page: Any, metrics: dict[str, Any]) -> None:
    """Add the learning curves: the dev metric, the task's loss, and the terms of guides."""
    from headwise.inspection import draw_curves

    primary, history = metrics["primary_metric"], metrics["history"]
    guides = sorted({name for log in history for name in log if name.startswith("guide/") and name.count("/") == 1})
    figures = {
        f"Dev {primary}": (primary, [f"eval_{primary}"]),
        "Training loss of the task": ("loss", ["task_loss" if guides else "loss"]),
        "Terms of the guides, without their weights": ("term", guides),
    }
    for heading, (y, names) in figures.items():
        curves = {name.removeprefix("guide/"): [curve] for name in names if (curve := read_curve(metrics, name))}
        if curves:
            page.section(heading)
            page.figure(draw_curves(curves, x="epoch", y=y, with_legend=names is guides), f"{heading}, by epoch.")


def read_curve(metrics: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """Return a logged value over epochs."""
    return [(log["epoch"], log[name]) for log in metrics["history"] if name in log and "epoch" in log]
