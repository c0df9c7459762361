"""Sentences of a summary."""

from pathlib import Path

import numpy as np

from headwise.studies.analysis import analyze
from headwise.studies.summary import list_warnings, summarize
from tests.studies.simulated import classification_run, regression_runs, simulate_runs


def test_significant_and_insignificant_differences(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.80, "distance-aware": 0.86}, seeds=10)
    analysis = analyze(results, "none")
    plain, distance_aware = summarize(analysis)
    assert plain.startswith("plain is not significantly different from none: ")
    assert plain.endswith(" seeds would be needed to detect a difference of this size.")
    assert distance_aware.startswith("distance-aware is better than none by ")
    assert distance_aware.endswith(" after Holm correction, 10 seeds).")
    assert list_warnings(analysis.tasks[0]) == []


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
        "plain has 6 of 7 seeds; its difference is over those.",
        "rpr has 1 of 7 seeds; its difference is over those.",
        "rpr shares no seed with its baseline and is not compared.",
        "There are no predictions, so the variation over test examples is unknown.",
    ]
