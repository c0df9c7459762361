"""The verdict on a run: one sentence that says whether the model is better than its baselines."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwise.tasks.summary import are_ratings

#: Metrics of which a lower value is better.
LOWER_IS_BETTER = {"rmse", "mae", "loss"}

#: Baselines that give every row the same answer. A model that is not better has learned nothing.
CONSTANT_ANSWERS = {
    "most frequent label": "always answering the most frequent label",
    "most frequent labels": "always answering the most frequent labels",
    "labels of most rows": "always answering the labels of most rows",  # of older runs
    "mean": "always answering the mean",
    "most frequent tag": "always answering the most frequent tag",
}

#: The best possible result on simulated data, which no model is expected to reach.
ORACLE = "oracle"

#: A difference is clear if it exceeds this number of standard errors.
CLEAR = 2.0

MORE_EPOCHS = "more --epochs"
TUNE = "--tune"
HINTS = (TUNE, MORE_EPOCHS, "more training rows")
HINTS_FROM_SCRATCH = (*HINTS, "a pretrained --model")


def judge(
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    *,
    primary_metric: str,
    standard_error: float = 0.0,
    most_frequent_label: str | None = None,
    from_scratch: bool = False,
    stopped_early: bool = False,
    tuned: bool = False,
    confusion_matrix: Sequence[Sequence[int]] | None = None,
    labels: Sequence[str] = (),
) -> str:
    """Return one sentence that says whether a model is better than its baselines.

    The model is compared with the best baseline that gives every row the same answer, and with the best of the others,
    such as TF-IDF or BM25. An oracle is not a baseline.

    Args:
        metrics: the metrics of the model on a split.
        baselines: the metrics of each baseline on the same split.
        primary_metric: the metric that is compared.
        standard_error: its standard error. Differences of up to twice the standard error are not clear.
        most_frequent_label: the label that the baseline "most frequent label" always answers.
        from_scratch: whether the model was trained from scratch, for the hint.
        stopped_early: whether training was stopped before its last epoch, so that more epochs would not help.
        tuned: whether the learning rate was tuned already, or cannot be tuned, so that `--tune` would not help.
        confusion_matrix: of classifiers: the number of rows by true and predicted label. A model that predicts the same
            label for all rows has learned nothing, also where this label is more frequent than in training.
        labels: the labels of its rows and columns.

    Example:
        >>> constant, tfidf = {"accuracy": 0.28}, {"accuracy": 0.74}
        >>> judge({"accuracy": 0.85}, {"most frequent label": constant}, primary_metric="accuracy", standard_error=0.01)
        'better than always answering the most frequent label (accuracy 0.8500, baseline 0.2800)'
        >>> judge({"accuracy": 0.20}, {"most frequent label": constant}, primary_metric="accuracy")[:40]
        'learned nothing: not better than always '
        >>> baselines = {"most frequent label": constant, "TF-IDF": tfidf}
        >>> judge({"accuracy": 0.70}, baselines, primary_metric="accuracy", standard_error=0.01)[:62]
        'better than always answering the most frequent label, but belo'
    """
    value = metrics[primary_metric]
    tried = {MORE_EPOCHS} if stopped_early else set()
    tried |= {TUNE} if tuned else set()
    hints = [x for x in (HINTS_FROM_SCRATCH if from_scratch else HINTS) if x not in tried]
    hints = ["--label-type regression", *hints] if are_ratings(labels) else hints
    hint = describe_hints(hints)
    sign = -1 if primary_metric in LOWER_IS_BETTER else 1
    perfect = 1 if sign > 0 else 0
    values = {
        name: scores[primary_metric]
        for name, scores in baselines.items()
        if name != ORACLE and primary_metric in scores
    }
    if not values:
        if value == 0 and sign > 0:
            return f"learned nothing: {primary_metric} is 0; {hint}"
        return f"no baseline to compare with ({primary_metric} {value:.4f})"

    def best(names: list[str]) -> str | None:
        return max(names, key=lambda name: sign * values[name], default=None)

    def gain(name: str) -> float:
        return sign * (value - values[name])

    def figures(name: str) -> str:
        return f"({primary_metric} {value:.4f}, baseline {values[name]:.4f})"

    constant = best([name for name in values if name in CONSTANT_ANSWERS])
    other = best([name for name in values if name not in CONSTANT_ANSWERS])
    answer = describe_answer(constant, most_frequent_label)
    margin = CLEAR * standard_error
    is_below = other is not None and gain(other) < -margin
    also_below = f"; below {other} (baseline {values[other]:.4f})" if other is not None and is_below else ""
    if constant is not None and math.isclose(values[constant], perfect, abs_tol=1e-6):
        return f"not judged: {answer} is right for all rows {figures(constant)}; evaluate rows with different labels"
    true_labels, predicted_labels = find_used_labels(confusion_matrix, labels) if confusion_matrix else ([], [])
    if constant is not None and len(true_labels) == 1:
        label = true_labels[0]
        return f"not judged: every row is labelled {label!r} {figures(constant)}; evaluate rows with different labels"
    if constant is not None and len(predicted_labels) == 1 and gain(constant) > 0:
        return (
            f"learned nothing: the model always answers {predicted_labels[0]!r} {figures(constant)}{also_below}; {hint}"
        )
    if constant is not None and gain(constant) <= 0:
        return f"learned nothing: not better than {answer} {figures(constant)}{also_below}; {hint}"
    if constant is not None and gain(constant) <= margin:
        return (
            f"not clearly better than {answer} {figures(constant)}: the difference is within {CLEAR:g} standard errors"
            f"{also_below}; {describe_hints((*hints, 'more rows to evaluate'))}"
        )
    if primary_metric == "macro_f1" and confusion_matrix:
        expected = expected_macro_f1(confusion_matrix)
        random_order = (
            f"better than the same answers in random order ({primary_metric} {value:.4f}, baseline {expected:.4f})"
        )
        if value <= expected:
            return f"learned nothing: not {random_order}{also_below}; {hint}"
        if value <= expected + margin:
            return (
                f"not clearly {random_order}: the difference is within {CLEAR:g} standard errors{also_below}; "
                f"{describe_hints((*hints, 'more rows to evaluate'))}"
            )
    prefix = "" if constant is None else f"better than {answer}, but "
    if other is not None and is_below:
        return f"{prefix}below {other} {figures(other)}; {hint}"
    if other is not None and gain(other) <= margin:
        degree = "clearly " if gain(other) > 0 else ""
        return f"{prefix}not {degree}better than {other} {figures(other)}{'' if value == perfect else f'; {hint}'}"
    if other is not None:
        both = f"{answer} and than {other}" if answer else other
        return f"better than {both} {figures(other)}"
    assert constant is not None
    return f"better than {answer} {figures(constant)}"


def judge_run(metrics: Mapping[str, Any], *, from_scratch: bool = False, can_tune: bool = True) -> str:
    """Return the verdict on a finished run, by its test split, or by dev if it has none.

    It compares the primary metric, or macro_f1 if that selected the epoch.

    Args:
        metrics: the contents of `metrics.json`.
        from_scratch: whether the model was trained from scratch.
        can_tune: whether the type of task has `--tune`.
    """
    splits = metrics["metrics"]
    split = "test" if "test" in splits else next(reversed(splits), None)
    if split is None:
        return "not evaluated: the data has no dev or test split"
    metric = metrics.get("verdict_metric") or metrics["primary_metric"]
    errors = metrics["verdict_standard_error"] if metrics.get("verdict_metric") else metrics["standard_error"]
    verdict = judge(
        splits[split],
        metrics["baselines"].get(split, {}),
        primary_metric=metric,
        standard_error=errors[split],
        most_frequent_label=metrics.get("most_frequent_label"),
        from_scratch=from_scratch,
        stopped_early=metrics.get("stopped_early", False),
        tuned="tuning" in metrics or not can_tune,
        confusion_matrix=metrics.get("confusion_matrix", {}).get(split),
        labels=metrics.get("labels", ()),
    )
    return f"{split}: {verdict}"


def find_used_labels(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the labels that at least one row has, and those that are predicted for at least one row.

    >>> find_used_labels([[0, 4], [0, 6]], ["no", "yes"])
    (['no', 'yes'], ['yes'])
    """
    true_labels = [label for label, row in zip(labels, matrix, strict=True) if any(row)]
    predicted_labels = [label for label, column in zip(labels, zip(*matrix, strict=True), strict=True) if any(column)]
    return true_labels, predicted_labels


def expected_macro_f1(matrix: Sequence[Sequence[int]]) -> float:
    """Return the macro F1 that is expected if the predictions of all rows are put in random order.

    >>> expected_macro_f1([[25, 25], [25, 25]]), expected_macro_f1([[50, 0], [0, 50]])
    (0.5, 0.5)
    """
    true, predicted = [sum(row) for row in matrix], [sum(column) for column in zip(*matrix, strict=True)]
    used = [(t, p) for t, p in zip(true, predicted, strict=True) if t + p]
    return float(np.mean([2 * t * p / (t + p) for t, p in used]) / sum(true))


def describe_hints(hints: Sequence[str]) -> str:
    """Return what to try, as a phrase.

    >>> describe_hints(HINTS), describe_hints(HINTS[-1:])
    ('try --tune, more --epochs or more training rows', 'try more training rows')
    """
    *others, last = hints
    return f"try {', '.join(others)} or {last}" if others else f"try {last}"


def describe_answer(baseline: str | None, most_frequent_label: str | None) -> str:
    """Return what a baseline with a constant answer does, as a phrase; empty without such a baseline.

    >>> describe_answer("most frequent label", "spam"), describe_answer("mean", None)
    ("always answering 'spam'", 'always answering the mean')
    """
    if baseline is None:
        return ""
    if baseline == "most frequent label" and most_frequent_label is not None:
        return f"always answering {most_frequent_label!r}"
    return CONSTANT_ANSWERS[baseline]
