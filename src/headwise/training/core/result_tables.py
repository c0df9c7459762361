"""Tables of results, for the terminal, the report and the model card."""

from collections.abc import Mapping, Sequence
from typing import Any

#: A header and rows of formatted cells.
Table = tuple[list[str], list[list[str]]]

#: Entries of the metrics of rankings that are numbers of queries.
COUNTS = ("queries", "queries_without_hit")

#: More classes are not printed; `metrics.json` has all of them.
MAX_PRINTED_CLASSES = 10
MAX_PRINTED_MATRIX = 10
MAX_CONFUSIONS = 5


def select_split(metrics: Mapping[str, Any]) -> str | None:
    """Return the split whose details are shown: test, or dev if there is no test; None without both."""
    splits = metrics["metrics"]
    return "test" if "test" in splits else next(reversed(splits), None)


def build_metrics_table(metrics: Mapping[str, Any]) -> Table:
    """Return the metrics of the model and of the baselines on all splits."""
    primary = metrics["primary_metric"]
    names = [primary, *(name for name in next(iter(metrics["metrics"].values()), {}) if name != primary)]
    rows = []
    for split, values in metrics["metrics"].items():
        error = f" ± {metrics['standard_error'][split]:.4f}"
        cells = [format_cell(values, name) + (error if name == primary else "") for name in names]
        rows.append([split, "this model", *cells])
        for baseline, baseline_values in metrics["baselines"].get(split, {}).items():
            rows.append([split, baseline, *(format_cell(baseline_values, name) for name in names)])
    return ["split", "model", *names], rows


def format_cell(values: Mapping[str, float], name: str) -> str:
    """Return a metric as the cell of a table; empty if there is none."""
    return format_metric(name, values[name]) if name in values else ""


def format_metric(name: str, value: float) -> str:
    """Return a metric with 4 decimals, and a number of queries without.

    >>> format_metric("mrr", 1.0), format_metric("queries_without_hit", 0.0)
    ('1.0000', '0')
    """
    return f"{value:,.0f}" if name in COUNTS else format_number(value)


def format_number(value: float) -> str:
    """Return a metric with 4 decimals, or a count if it is a whole number above 1.

    >>> format_number(0.5), format_number(1.0), format_number(1300.0)
    ('0.5000', '1.0000', '1,300')
    """
    return f"{value:,.0f}" if value > 1 and float(value).is_integer() else f"{value:.4f}"


def build_per_class_table(per_class: Mapping[str, Mapping[str, float]]) -> Table:
    """Return precision, recall, F1 and the number of rows of each class."""
    rows = [
        [label, *(format_number(values[name]) for name in ("precision", "recall", "f1")), f"{values['support']:,}"]
        for label, values in per_class.items()
    ]
    return ["label", "precision", "recall", "f1", "rows"], rows


def build_matrix_table(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> Table:
    """Return a confusion matrix: true labels in rows, predicted labels in columns."""
    rows = [[label, *(f"{count:,}" for count in counts)] for label, counts in zip(labels, matrix, strict=True)]
    return ["true \\ predicted", *labels], rows


def find_confusions(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return the most frequent mistakes: their count, the true and the predicted label.

    >>> find_confusions([[5, 2, 0], [0, 4, 3], [0, 0, 6]], ["a", "b", "c"])
    [(3, 'b', 'c'), (2, 'a', 'b')]
    """
    mistakes = [
        (count, labels[true], labels[predicted])
        for true, counts in enumerate(matrix)
        for predicted, count in enumerate(counts)
        if count and true != predicted
    ]
    return sorted(mistakes, key=lambda mistake: -mistake[0])[:MAX_CONFUSIONS]


def describe_calibration(metrics: Mapping[str, Any], split: str | None) -> str:
    """Return a sentence on the expected calibration error of a split; empty if there is none."""
    if not metrics["calibration"].get(split):
        return ""
    sentence = f"Expected calibration error {metrics['calibration'][split]['ece']:.4f}"
    temperature = metrics["decision"]["temperature"]
    scaled = "" if temperature == 1 else f", with the scores divided by a temperature of {temperature:.3g} (fit on dev)"
    return f"{sentence}{scaled}."


def describe_thresholds(metrics: Mapping[str, Any]) -> str:
    """Return a sentence on the decision thresholds; empty if there are none."""
    thresholds = metrics.get("decision", {}).get("thresholds")
    if not thresholds:
        return ""
    values = ", ".join(f"{label} {threshold:.4f}" for label, threshold in thresholds.items())
    return f"A label is predicted above its probability threshold, which was tuned on dev: {values}."


def format_table(table: Table) -> list[str]:
    """Return a table as aligned lines, the first column to the left.

    >>> format_table((["label", "f1"], [["good", "0.9120"], ["bad", "1.0000"]]))
    ['label      f1', 'good   0.9120', 'bad    1.0000']
    """
    header, *rows = [[" ".join(cell.split()) for cell in row] for row in (table[0], *table[1])]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in ([*zip(row, widths, strict=True)] for row in [header, *rows])
    ]


def format_details(details: Mapping[str, Any], labels: Sequence[str], split: str) -> list[str]:
    """Return the results of each class, the confusion matrix and the calibration error as lines.

    Args:
        details: `per_class`, `confusion_matrix` and `calibration` of a split, those that there are.
        labels: the class names.
        split: the name of the split.
    """
    lines = []
    if per_class := details.get("per_class"):
        ordered = sorted(per_class.items(), key=lambda item: (item[1]["support"] == 0, item[1]["f1"]))
        shown = dict(ordered[:MAX_PRINTED_CLASSES])
        is_complete = len(shown) == len(per_class)
        lines.append(f"{split}, {'each label' if is_complete else f'the {len(shown)} labels with the lowest f1'}:")
        lines += indent(format_table(build_per_class_table(per_class if is_complete else shown)))
    if matrix := details.get("confusion_matrix"):
        if len(labels) <= MAX_PRINTED_MATRIX:
            lines.append(f"{split}, confusion matrix:")
            lines += indent(format_table(build_matrix_table(matrix, labels)))
        elif confusions := find_confusions(matrix, labels):
            parts = [f"{true} as {predicted} {count:,}" for count, true, predicted in confusions]
            lines.append(f"{split}, most frequent mistakes: {', '.join(parts)}")
    if calibration := details.get("calibration"):
        lines.append(f"{split}, expected calibration error: {calibration['ece']:.4f}")
    return lines


def indent(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
