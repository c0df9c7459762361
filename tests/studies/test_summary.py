"""Sentences of a summary."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headwise.studies.analysis import Metric, analyze
from headwise.studies.plan import Result
from headwise.studies.report import print_analysis, write_report
from headwise.studies.summary import list_warnings, summarize, summarize_baselines
from headwise.studies.tables import build_task_table
from headwise.studies.verdicts import judge_comparison
from tests.studies.simulated import classification_run, regression_runs, simulate_runs


def test_significant_and_insignificant_differences(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.80, "distance-aware": 0.86}, seeds=10)
    analysis = analyze(results, "none", margin=0.1)
    plain, distance_aware = summarize(analysis)
    assert plain.startswith("plain is not significantly different from none: ")
    assert plain.endswith(" seeds would be needed to detect a difference of this size.")
    assert distance_aware.startswith("distance-aware is better than none by ")
    assert distance_aware.endswith(" after Holm correction, 10 seeds).")
    assert list_warnings(analysis.tasks[0]) == []


def test_methods_with_the_same_results(tmp_path: Path) -> None:
    is_correct = np.arange(100) < 80
    results = [
        classification_run(tmp_path, name, seed, is_correct, "sst2") for seed in (0, 1) for name in ("none", "x")
    ]
    (sentence,) = summarize(analyze(results, "none"))
    assert sentence.endswith("The mean difference is 0, so no number of seeds would make it significant.")


def test_worse_method_with_positive_numbers(tmp_path: Path) -> None:
    (sentence,) = summarize(analyze(simulate_runs(tmp_path, {"none": 0.86, "guided": 0.80}, seeds=10), "none"))
    assert sentence.startswith("guided is worse than none by ")
    assert "95% CI " in sentence
    assert "−" not in sentence, "the difference and its interval are stated as positive numbers"


def test_lower_error_is_better(tmp_path: Path) -> None:
    results = regression_runs(tmp_path, {"none": 1.0, "plain": 1.1, "distance-aware": 0.9}, seeds=8)
    plain, distance_aware = summarize(analyze(results, "none"))
    assert distance_aware.startswith("distance-aware is better than none by 0.1")
    assert "rmse" in distance_aware
    assert plain.startswith("plain is worse than none by 0.09")


def test_five_seeds_are_too_few_for_a_permutation_test(tmp_path: Path) -> None:
    analysis = analyze(simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=5), "none")
    assert "The permutation test does not confirm this (p = 0.062)." in summarize(analysis)[0]
    assert list_warnings(analysis.tasks[0]) == [
        "A permutation test with 5 seeds has p ≥ 0.0625 and cannot be significant; at least 6 seeds are needed."
    ]


def test_one_seed_allows_no_statement(tmp_path: Path) -> None:
    analysis = analyze(simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=1), "none")
    (sentence,) = summarize(analysis)
    assert sentence.endswith("with one seed. One seed allows no statistical statement.")
    assert "nan" not in sentence
    assert list_warnings(analysis.tasks[0]) == ["One seed allows no statistical statement."]


def test_equal_differences_are_not_certain(tmp_path: Path) -> None:
    results = [
        classification_run(tmp_path, name, seed, np.arange(100) < num_correct)
        for name, num_correct in {"none": 80, "plain": 82}.items()
        for seed in range(3)
    ]
    (sentence,) = summarize(analyze(results, "none"))
    assert (
        "not significantly different from none: +2.00 points (the same difference for every seed, p = 0.25" in sentence
    )
    assert sentence.endswith("The differences do not vary, so the number of seeds that would be needed is unknown.")


def test_ranks_over_tasks(tmp_path: Path) -> None:
    accuracies = {"none": 0.80, "plain": 0.70, "distance-aware": 0.86}
    results = [run for task in ("a", "bb", "ccc") for run in simulate_runs(tmp_path, accuracies, seeds=6, task=task)]
    ranks, *sentences = summarize(analyze(results, "none"))
    assert ranks.startswith("Average ranks over 3 tasks: distance-aware 1.00, none 2.00, plain 3.00. Friedman test: p")
    assert sentences[0].startswith("a: plain is worse than none by")


def test_warnings_about_missing_runs_and_predictions(tmp_path: Path) -> None:
    results = [
        result
        for result in simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86, "rpr": 0.86}, seeds=8)
        if result.seed in {"none": range(7), "plain": range(6), "rpr": [7]}[result.method]
    ]
    (results[0].run_dir / "predictions.parquet").unlink()
    assert list_warnings(analyze(results, "none").tasks[0]) == [
        "plain and none are compared over 6 of 7 seeds, those that both have. Means are over all seeds of a method.",
        "rpr shares no seed with its baseline and is not compared.",
        "There are no predictions, so the variation over test examples is unknown.",
    ]


def test_a_single_method_is_not_compared(tmp_path: Path) -> None:
    (run,) = simulate_runs(tmp_path, {"distance-aware": 0.5}, seeds=1)
    run.metrics["baselines"] = {"test": {"TF-IDF": {"accuracy": 0.9}}}
    analysis = analyze([run], "distance-aware")
    assert summarize(analysis) == [
        "distance-aware did not learn: it is not better than TF-IDF (accuracy 90.00). Try more epochs, another "
        "learning rate or more rows."
    ]
    assert build_task_table(analysis.tasks[0]).title == "sst2"


def test_warning_about_missing_runs_of_the_baseline(tmp_path: Path) -> None:
    results = [
        result
        for result in simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=8)
        if result.seed in {"none": [0, 1, 2, 3, 4, 5], "plain": [0, 2, 3, 4, 5, 6, 7]}[result.method]
    ]
    assert list_warnings(analyze(results, "none").tasks[0]) == [
        "A permutation test with 5 seeds has p ≥ 0.0625 and cannot be significant; at least 6 seeds are needed.",
        "plain and none are compared over 5 of 7 seeds, those that both have. Means are over all seeds of a method.",
    ]


@pytest.mark.parametrize(
    ("rows", "is_warned"),
    [("aa aa aa", False), ("aa bb cc", False), ("aa aa bb", True), ("aa ab aa", True), ("aa bb cd", True)],
    ids=["fixed test rows", "split by seed", "changed later", "changed during a seed", "split by seed and changed"],
)
def test_warning_about_test_rows_that_changed(rows: str, is_warned: bool, tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=3)
    for result, row in zip(results, rows.replace(" ", ""), strict=True):
        result.metrics["fingerprints"] = {"test": row}
    warnings = list_warnings(analyze(results, "none").tasks[0])
    assert any("Runs have different test rows" in warning for warning in warnings) == is_warned


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_estimates_of_needed_seeds_agree_with_the_warning(seeds: int, tmp_path: Path) -> None:
    accuracies = {"none": 0.80, "a": 0.81, "b": 0.811, "c": 0.812}
    analysis = analyze(simulate_runs(tmp_path, accuracies, seeds=seeds), "none")
    (warning,) = list_warnings(analysis.tasks[0])
    (at_least,) = map(int, re.findall(r"at least (\d+) seeds are needed", warning))
    numbers = re.findall(r"About ([\d,]+) seeds", " ".join(summarize(analysis)))
    estimates = [int(number.replace(",", "")) for number in numbers]
    assert estimates, "some differences are not significant"
    assert min(estimates) >= at_least > seeds


def test_seeds_that_would_be_needed_are_more_than_there_were(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "a": 0.803, "b": 0.806, "c": 0.809}, seeds=8)
    for comparison in analyze(results, "none").tasks[0].comparisons:
        assert comparison.is_significant or comparison.seeds_needed is None or comparison.seeds_needed > 8


def with_baseline(results: list[Result], value: float, error: float = 0.02) -> list[Result]:
    """Add a baseline that does not read the text, and a standard error, to the metrics of runs."""
    for result in results:
        metric = result.metrics["primary_metric"]
        name = "mean" if metric == "rmse" else "most frequent label"
        result.metrics["baselines"] = {"test": {name: {metric: value}}}
        result.metrics["standard_error"] = {"test": error}
    return results


def test_no_method_learned(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.50, "plain": 0.52}, seeds=6)
    first, *others = summarize(analyze(with_baseline(results, 0.5), "none"))
    assert first.startswith(
        "No method learned: no method is clearly better than always answering the most frequent label (accuracy 50.00)."
    )
    assert len(others) == 1, "the comparison is still stated"


def test_only_some_methods_learned(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.51, "plain": 0.80}, seeds=6)
    first, *_ = summarize(analyze(with_baseline(results, 0.5), "none"))
    assert first.startswith("none did not learn enough: not clearly better than always answering the most frequent")


def test_learning_of_ratings_is_a_lower_error(tmp_path: Path) -> None:
    results = with_baseline(regression_runs(tmp_path, {"none": 1.0, "plain": 0.5}, seeds=3), 1.0)
    first, *_ = summarize(analyze(results, "none"))
    assert first == "none did not learn enough: not clearly better than always answering the mean (rmse 1.0000)."


def test_methods_below_a_linear_model_are_not_compared(tmp_path: Path) -> None:
    results = with_baseline(simulate_runs(tmp_path, {"none": 0.70, "plain": 0.80, "rpr": 0.86}, seeds=6), 0.5)
    for result in results:
        result.metrics["baselines"]["test"]["TF-IDF + logistic regression"] = {"accuracy": 0.75}
    first, plain, _ = summarize(analyze(results, "none"))
    assert first == "none did not learn enough: below TF-IDF + logistic regression (accuracy 75.00)."
    assert plain.startswith("plain and none: not testable here, because none did not learn. The difference is +")
    task = analyze(results, "plain").tasks[0]
    verdicts = {comparison.method: judge_comparison(comparison, task) for comparison in task.comparisons}
    assert verdicts == {"none": "not testable", "rpr": "better"}
    cells = {row[0]: row[2] for row in build_task_table(task).rows}
    assert "*" not in cells["none"], "the difference is significant, but not testable"
    assert "*" in cells["rpr"]


def test_baselines_of_the_runs_are_stated_also_if_all_methods_are_better(tmp_path: Path) -> None:
    results = with_baseline(simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=2), 0.5)
    for result in results:
        result.metrics["baselines"]["test"]["TF-IDF + logistic regression"] = {"accuracy": 0.7 + 0.1 * result.seed}
        result.metrics["baselines"]["test"]["oracle"] = {"accuracy": 1.0}
    seeds = {result.seed for result in results}
    analysis = analyze(results, "none")
    sentence = (
        "Baselines, accuracy on test, mean over seeds: most frequent label 50.00, TF-IDF + logistic regression "
        f"{70 + 10 * sum(seeds) / 2:.2f}."
    )
    assert summarize_baselines(analysis.tasks[0]) == [sentence]
    write_report(analysis, tmp_path)
    for name in ("report.html", "table.md"):
        assert sentence in (tmp_path / name).read_text(encoding="utf-8")
    console = Console(record=True, width=300, file=io.StringIO())
    print_analysis(analysis, console)
    assert sentence in console.export_text()


def test_no_difference_needs_an_equivalence_test(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.80}, seeds=10)
    (undecided,) = summarize(analyze(results, "none", margin=0.01))
    assert undecided.startswith("plain is not significantly different from none: ")
    assert "A difference of more than 0.01 points is not excluded." in undecided
    (equivalent,) = summarize(analyze(results, "none", margin=10.0))
    assert equivalent.startswith("plain and none do not differ by more than 10.00 points: ")
    assert "equivalence test p < 0.001" in equivalent


def test_default_margins() -> None:
    margins = [Metric(name, True, "test").default_margin(0.5) for name in ("accuracy", "bleu", "rmse")]
    assert margins == [1.0, 0.5, 0.01]


def test_nothing_is_said_if_all_methods_learned(tmp_path: Path) -> None:
    results = with_baseline(simulate_runs(tmp_path, {"none": 0.7, "plain": 0.8}, seeds=6), 0.5)
    assert not any("learned" in line for line in summarize(analyze(results, "none")))
