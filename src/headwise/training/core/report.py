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
    from headwise.inspection import Page, draw_confusion_matrix, draw_curves, draw_reliability

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
    curves = {
        f"{metrics['primary_metric']} on dev": read_curve(metrics, f"eval_{metrics['primary_metric']}"),
        "loss": read_curve(metrics, "loss"),
    }
    if any(curves.values()):
        page.section("Training")
    for name, curve in curves.items():
        if curve:
            page.figure(draw_curves({metrics["model"].rstrip("/").split("/")[-1]: [curve]}, x="epoch", y=name), name)
    page.write(directory / REPORT)


def read_curve(metrics: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """Return a logged value over epochs."""
    return [(log["epoch"], log[name]) for log in metrics["history"] if name in log and "epoch" in log]
