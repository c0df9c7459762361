"""Analysis of a study's runs: estimates, comparisons with controls, and missing runs."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from headwise.errors import UserError
from headwise.studies.analysis import analyze
from tests.studies.simulated import classification_run, regression_runs, simulate_runs, write_run


def test_estimates_equal_those_of_scipy(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.80, "distance-aware": 0.86}, seeds=8)
    (task,) = analyze(results, "none").tasks
    values_of = {method.name: np.array(list(method.values.values())) for method in task.methods}
    for name, values in values_of.items():
        assert values == pytest.approx(
            [100 * result.metrics["metrics"]["test"]["accuracy"] for result in results if result.method == name]
        )
    for comparison in task.comparisons:
        expected = stats.ttest_rel(values_of[comparison.method], values_of["none"])
        estimate, combined = comparison.seed_estimate, comparison.combined_estimate
        assert estimate.p == pytest.approx(expected.pvalue)
        assert (estimate.low, estimate.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert comparison.example_estimate is not None
        assert combined is not None
        assert combined.high - combined.low > estimate.high - estimate.low
    p = {comparison.method: comparison.seed_estimate.p for comparison in task.comparisons}
    p_holm = {comparison.method: comparison.p_holm for comparison in task.comparisons}
    assert p_holm["distance-aware"] == pytest.approx(2 * p["distance-aware"])
    assert p_holm["plain"] == pytest.approx(p["plain"])


def test_improvement_is_positive_for_a_lower_error(tmp_path: Path) -> None:
    results = regression_runs(tmp_path, {"none": 1.0, "plain": 1.1, "distance-aware": 0.9}, seeds=8)
    (task,) = analyze(results, "none").tasks
    comparison = task.comparison_of("distance-aware")
    assert comparison is not None
    assert comparison.seed_estimate.value < 0 < comparison.improvement


def test_ranks_over_tasks_with_different_directions(tmp_path: Path) -> None:
    accuracies = {"none": 0.80, "plain": 0.70, "distance-aware": 0.86}
    results = [run for task in ("a", "bb", "ccc") for run in simulate_runs(tmp_path, accuracies, seeds=6, task=task)]
    results += regression_runs(tmp_path, {"none": 1.0, "plain": 1.2, "distance-aware": 0.8}, seeds=6)
    ranks = analyze(results, "none").ranks
    assert ranks is not None
    assert ranks.average == {"none": 2.0, "plain": 3.0, "distance-aware": 1.0}
    assert ranks.num_tasks == 4


def test_runs_without_partner_are_not_compared(tmp_path: Path) -> None:
    results = [
        result
        for result in simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86, "rpr": 0.86}, seeds=8)
        if result.seed in {"none": range(7), "plain": range(6), "rpr": [7]}[result.method]
    ]
    (task,) = analyze(results, "none").tasks
    (comparison,) = task.comparisons
    assert comparison.method == "plain"
    assert list(comparison.differences) == list(range(6))
    assert task.unpaired_methods == ("rpr",)


def test_no_bootstrap_without_predictions(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=6)
    (results[0].run_dir / "predictions.parquet").unlink()
    (comparison,) = analyze(results, "none").tasks[0].comparisons
    assert comparison.example_estimate is None
    assert comparison.combined_estimate is None


def test_bootstrap_samples_without_rows_of_a_seed_are_ignored(tmp_path: Path) -> None:
    """Seeds have few test rows each, and no row in common."""
    labels, results = np.array([0, 1, 1]), []
    for seed in range(6):
        for name in ("none", "plain"):
            scores = np.random.default_rng(seed + len(name)).random((3, 2))
            rows = list(range(3 * seed, 3 * seed + 3))
            results.append(
                write_run(tmp_path, "classification", "own", name, seed, {"label": labels}, scores, ["a", "b"], rows)
            )
    (comparison,) = analyze(results, "none").tasks[0].comparisons
    estimate = comparison.example_estimate
    assert estimate is not None
    assert np.isfinite([estimate.low, estimate.high, estimate.p]).all()


def test_interval_over_examples_with_one_test_row_for_each_seed(tmp_path: Path) -> None:
    """No or few bootstrap samples have the rows of all seeds."""
    results = []
    for seed in range(12):
        for name, score in (("none", 0), ("plain", seed % 3 == 0)):
            columns, scores = {"label": np.array([1])}, np.array([[1 - score, score]])
            results.append(
                write_run(tmp_path, "classification", "own", name, seed, columns, scores, ["a", "b"], [seed])
            )
    (comparison,) = analyze(results, "none").tasks[0].comparisons
    assert comparison.seed_estimate.value == pytest.approx(100 / 3)
    assert comparison.example_estimate is not None
    assert 0 <= comparison.example_estimate.low < 25
    assert 42 < comparison.example_estimate.high < 70


def test_analyze_needs_runs_of_the_baseline(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run has finished"):
        analyze([], "none")
    with pytest.raises(UserError, match="no run of the baseline 'none' has finished"):
        analyze(simulate_runs(tmp_path, {"plain": 0.8}, seeds=2), "none")


def test_tasks_without_runs_of_the_baseline_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failed = simulate_runs(tmp_path, {"plain": 0.8}, seeds=2, task="sst5")
    finished = simulate_runs(tmp_path, {"none": 0.8, "plain": 0.86}, seeds=6)
    (task,) = analyze([*failed, *finished], "none").tasks
    assert task.task == "sst2"
    assert "sst5: nothing to compare with: no run of the baseline 'none' has finished" in caplog.text


def test_methods_are_compared_with_their_controls(tmp_path: Path) -> None:
    accuracies = {"bert": 0.7, "bert+mdg": 0.76, "roberta": 0.8, "roberta+mdg": 0.86}
    results = simulate_runs(tmp_path, accuracies, seeds=8)
    analysis = analyze(results, "bert", {"bert+mdg": "bert", "roberta+mdg": "roberta", "albert+mdg": "albert"})
    assert [(comparison.method, comparison.baseline) for comparison in analysis.tasks[0].comparisons] == [
        ("bert+mdg", "bert"),
        ("roberta+mdg", "roberta"),
    ]


def test_dataset_is_that_of_the_baseline(tmp_path: Path) -> None:
    results = [
        classification_run(tmp_path, name, seed, np.arange(40) < 30)
        for seed in range(2)
        for name in ("few rows", "all rows")
    ]
    for result in results:
        result.metrics["dataset"] = f"{result.method}, seed {result.seed}."
    assert analyze(results, "all rows").tasks[0].dataset == "all rows, seed 0."
