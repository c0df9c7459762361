"""The verdict on a run, for all label types."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from headwise.training.core.verdict import expected_macro_f1, judge, judge_run
from tests.training.conftest import Headwise, write


def judge_accuracy(value: float, error: float = 0.01, **baselines: float) -> str:
    named = {name.replace("_", " "): {"accuracy": score} for name, score in baselines.items()}
    return judge(
        {"accuracy": value, "macro_f1": 0.0},
        named,
        primary_metric="accuracy",
        standard_error=error,
        most_frequent_label="entity",
    )


def test_the_label_that_is_always_answered_is_named() -> None:
    assert judge_accuracy(0.85, most_frequent_label=0.276).startswith("better than always answering 'entity' (")
    verdict = judge_accuracy(0.196, most_frequent_label=0.276)
    assert verdict.startswith("learned nothing: not better than always answering 'entity' (accuracy 0.1960, baseline")
    assert verdict.endswith("; try --tune, more --epochs or more training rows")


def test_a_difference_within_two_standard_errors_is_not_clear() -> None:
    assert judge_accuracy(0.30, error=0.02, most_frequent_label=0.276).startswith("not clearly better than always")
    assert judge_accuracy(0.30, error=0.01, most_frequent_label=0.276).startswith("better than always")


def test_the_best_of_several_baselines_counts() -> None:
    constant, tfidf = 0.34, 0.61
    below = judge_accuracy(0.564, most_frequent_label=constant, TF_IDF=tfidf, bigrams=0.5)
    assert below.startswith("better than always answering 'entity', but below TF IDF (accuracy 0.5640, baseline 0.6100")
    near = judge_accuracy(0.615, most_frequent_label=constant, TF_IDF=tfidf)
    assert near.startswith("better than always answering 'entity', but not clearly better than TF IDF")
    slightly_below = judge_accuracy(0.605, most_frequent_label=constant, TF_IDF=tfidf)
    assert slightly_below.startswith("better than always answering 'entity', but not better than TF IDF")
    above = judge_accuracy(0.7, most_frequent_label=constant, TF_IDF=tfidf)
    assert above == "better than always answering 'entity' and than TF IDF (accuracy 0.7000, baseline 0.6100)"


def test_a_clearly_better_linear_model_is_always_named() -> None:
    """Also where the model is hardly better than a constant answer, or not at all."""
    unclear = judge_accuracy(0.30, error=0.02, most_frequent_label=0.276, TF_IDF=0.74)
    assert unclear.startswith("not clearly better than always answering 'entity' (accuracy 0.3000, baseline 0.2760)")
    assert "; below TF IDF (baseline 0.7400); try" in unclear
    nothing = judge_accuracy(0.2, most_frequent_label=0.276, TF_IDF=0.74)
    assert nothing.startswith("learned nothing: ")
    assert "; below TF IDF (baseline 0.7400); try" in nothing
    assert "TF IDF" not in judge_accuracy(0.30, error=0.02, most_frequent_label=0.276, TF_IDF=0.31)


def test_macro_f1_must_exceed_that_of_random_answers() -> None:
    """Random answers have a higher macro F1 than a constant answer."""

    def verdict(matrix: list[list[int]]) -> str:
        pairs = [(i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) for _ in range(count)]
        true, predicted = zip(*pairs, strict=True)
        scores = [f1_score(true, answers, average="macro", zero_division=0) for answers in (predicted, [0] * len(true))]
        value, constant = ({"macro_f1": score} for score in scores)
        assert value["macro_f1"] > constant["macro_f1"]
        options: dict[str, Any] = {"primary_metric": "macro_f1", "standard_error": 0.03, "labels": ["no", "yes"]}
        return judge(value, {"most frequent label": constant}, confusion_matrix=matrix, **options)

    assert verdict([[25, 25], [27, 23]]).startswith("learned nothing: not better than the same answers in random order")
    assert verdict([[27, 23], [23, 27]]).startswith("not clearly better than the same answers in random order")
    assert verdict([[40, 10], [10, 40]]).startswith("better than always answering")


def test_the_expected_macro_f1_is_the_mean_over_random_orders() -> None:
    generator = np.random.default_rng(0)
    true, predicted = generator.integers(0, 3, 400), generator.choice(3, 400, p=[0.7, 0.2, 0.1])
    orders = [generator.permutation(predicted) for _ in range(300)]
    mean = np.mean([f1_score(true, order, average="macro") for order in orders])
    assert expected_macro_f1(confusion_matrix(true, predicted).tolist()) == pytest.approx(mean, abs=5e-3)


def test_an_error_is_better_when_it_is_lower() -> None:
    options: dict[str, Any] = {"primary_metric": "rmse", "standard_error": 0.01}
    baselines = {"mean": {"rmse": 1.2}, "TF-IDF": {"rmse": 0.9}}
    assert judge({"rmse": 0.8}, baselines, **options).startswith(
        "better than always answering the mean and than TF-IDF"
    )
    assert "but below TF-IDF" in judge({"rmse": 1.0}, baselines, **options)
    assert judge({"rmse": 1.3}, baselines, **options).startswith("learned nothing")


def test_rankings_are_compared_with_the_given_order() -> None:
    baselines = {"BM25": {"mrr": 0.5}}
    options: dict[str, Any] = {"primary_metric": "mrr", "standard_error": 0.01}
    assert judge({"mrr": 0.6}, baselines, **options) == "better than BM25 (mrr 0.6000, baseline 0.5000)"
    assert judge({"mrr": 0.4}, baselines, **options).startswith("below BM25 (mrr 0.4000, baseline 0.5000); try")


def test_an_oracle_is_no_baseline() -> None:
    baselines = {"popularity": {"auc": 0.55}, "oracle": {"auc": 0.9}}
    verdict = judge({"auc": 0.6}, baselines, primary_metric="auc", standard_error=0.01)
    assert verdict.startswith("better than popularity")


def test_rows_with_a_single_label_do_not_tell_what_a_model_has_learned() -> None:
    verdict = judge_accuracy(0.84, most_frequent_label=1.0, TF_IDF=0.95)
    assert verdict.startswith("not judged: always answering 'entity' is right for all rows (accuracy 0.8400, baseline")
    assert "learned nothing" not in verdict
    assert "more --epochs" not in verdict
    ratings = judge({"rmse": 0.1}, {"mean": {"rmse": 0.0}}, primary_metric="rmse", standard_error=0.01)
    assert ratings.startswith("not judged: always answering the mean is right for all rows")


def test_a_model_that_always_answers_the_same_has_learned_nothing() -> None:
    """Also where its only answer is more frequent than the most frequent label of training."""
    options: dict[str, Any] = {"primary_metric": "accuracy", "standard_error": 0.01, "most_frequent_label": "no"}
    baselines = {"most frequent label": {"accuracy": 0.4}, "TF-IDF": {"accuracy": 0.7}}
    labels = ["no", "yes"]
    constant = judge({"accuracy": 0.6}, baselines, confusion_matrix=[[0, 40], [0, 60]], labels=labels, **options)
    assert constant.startswith("learned nothing: the model always answers 'yes' (accuracy 0.6000, baseline 0.4000)")
    assert "; below TF-IDF (baseline 0.7000); try" in constant
    learned = judge({"accuracy": 0.6}, baselines, confusion_matrix=[[1, 39], [1, 59]], labels=labels, **options)
    assert learned.startswith("better than always answering 'no'")
    below = judge({"accuracy": 0.6}, baselines, confusion_matrix=[[0, 0], [40, 60]], labels=labels, **options)
    assert below.startswith("not judged: every row is labelled 'yes' (accuracy 0.6000, baseline 0.4000)")
    stored = {
        "primary_metric": "accuracy",
        "metrics": {"test": {"accuracy": 0.6}},
        "standard_error": {"test": 0.01},
        "baselines": {"test": baselines},
        "confusion_matrix": {"test": [[0, 40], [0, 60]]},
        "labels": labels,
    }
    assert judge_run(stored).startswith("test: learned nothing: the model always answers 'yes'")


def test_a_constant_model_has_learned_nothing_on_files_of_any_distribution(tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "data.csv", ("text", "label"), [("a film", "bad")] * 40 + [("a film", "good")] * 20)
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 1)
    assert headwise("train", "--data", data, "--out", tmp_path / "run", *options)[0] == 0
    for num_bad in (0, 20, 40, 60):
        rows = [("a film", "bad")] * num_bad + [("a film", "good")] * (60 - num_bad)
        file, report = write(tmp_path / "other.csv", ("text", "label"), rows), tmp_path / f"{num_bad}.json"
        assert headwise("evaluate", tmp_path / "run", "--data", file, "--out", report)[0] == 0
        verdict = json.loads(report.read_text())["verdict"]
        assert verdict.startswith("not judged" if num_bad in (0, 60) else "learned nothing"), verdict


def test_many_numbers_as_labels_are_probably_ratings() -> None:
    baselines = {"most frequent label": {"accuracy": 0.05}}
    for labels, is_advised in (([f"{x / 10}" for x in range(40)], True), (["1", "2", "3", "4", "5"], False)):
        text = judge({"accuracy": 0.05}, baselines, primary_metric="accuracy", labels=labels)
        assert ("try --label-type regression, --tune" in text) == is_advised


def test_few_rows_do_not_show_that_a_model_is_better(tmp_path: Path, headwise: Headwise) -> None:
    rows = [("a good film", "good"), ("a bad film", "bad")] * 10
    data = write(tmp_path / "data.csv", ("text", "label"), rows)
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 10)
    assert headwise("train", "--data", data, "--out", tmp_path / "run", *options)[0] == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["metrics"]["test"]["accuracy"] == 1.0  # of two rows
    assert metrics["verdict"].startswith("test: not clearly better than always answering")


def test_tags_without_a_baseline() -> None:
    assert judge({"f1": 0.0}, {}, primary_metric="f1").startswith("learned nothing: f1 is 0")
    assert judge({"f1": 0.4}, {}, primary_metric="f1") == "no baseline to compare with (f1 0.4000)"


def test_a_run_is_judged_by_test_then_by_dev() -> None:
    metrics = {
        "primary_metric": "accuracy",
        "metrics": {"dev": {"accuracy": 0.9}, "test": {"accuracy": 0.1}},
        "standard_error": {"dev": 0.01, "test": 0.01},
        "baselines": {split: {"most frequent label": {"accuracy": 0.5}} for split in ("dev", "test")},
    }
    assert judge_run(metrics).startswith("test: learned nothing")
    del metrics["metrics"]["test"]  # type: ignore[attr-defined]
    assert judge_run(metrics).startswith("dev: better than always answering the most frequent label")
    assert judge_run(metrics | {"metrics": {}}) == "not evaluated: the data has no dev or test split"


def test_more_epochs_are_not_recommended_after_early_stopping(tmp_path: Path, headwise: Headwise) -> None:
    rows = [(f"film {i}", ("good", "bad")[i % 2]) for i in range(60)]  # nothing to learn
    data = write(tmp_path / "data.csv", ("text", "label"), rows)
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--learning-rate", 1e-9, "--early-stopping-patience", 1)
    for epochs, recommends in ((1, True), (9, False)):
        out = tmp_path / str(epochs)
        assert headwise("train", "--data", data, "--out", out, "--epochs", epochs, *options)[0] == 0
        metrics = json.loads((out / "metrics.json").read_text())
        assert metrics["stopped_early"] is not recommends
        assert "; try --tune" in metrics["verdict"]
        assert ("more --epochs" in metrics["verdict"]) == recommends


def test_tuning_is_not_recommended_after_tuning() -> None:
    metrics: dict[str, Any] = {
        "primary_metric": "accuracy",
        "metrics": {"test": {"accuracy": 0.1}},
        "standard_error": {"test": 0.01},
        "baselines": {"test": {"most frequent label": {"accuracy": 0.5}}},
    }
    assert "--tune" in judge_run(metrics)
    assert "--tune" not in judge_run(metrics | {"tuning": {"chosen": 0.001}})
    tuned_and_stopped = judge_run(metrics | {"tuning": {"chosen": 0.001}, "stopped_early": True})
    assert tuned_and_stopped.endswith("; try more training rows")


def test_tuning_is_not_recommended_where_it_is_not_an_option() -> None:
    baselines = {"copy of the source": {"bleu": 0.5}}
    stored = {
        "primary_metric": "bleu",
        "metrics": {"test": {"bleu": 0.0}},
        "standard_error": {"test": 0.01},
        "baselines": {"test": baselines},
    }
    assert judge_run(stored, can_tune=False).endswith("; try more --epochs or more training rows")


def test_a_perfect_model_gets_no_advice() -> None:
    verdict = judge_accuracy(1.0, error=0.0, most_frequent_label=0.5, TF_IDF=1.0)
    assert (
        verdict
        == "better than always answering 'entity', but not better than TF IDF (accuracy 1.0000, baseline 1.0000)"
    )


def test_macro_f1_is_judged_if_it_selects_the_epoch(tmp_path: Path, headwise: Headwise) -> None:
    # the rare class is ambiguous: a model that finds it is less accurate than always answering "ok"
    rows = [("the lamp is broken", "defect" if i % 5 == 0 else "ok") for i in range(100)]
    rows += [(f"a nice lamp {i}", "ok") for i in range(300)]
    data = write(tmp_path / "data.csv", ("text", "label"), rows)
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 4, "--class-weights", "balanced")
    run = tmp_path / "run"
    selection = ("--metric-for-best-model", "macro_f1")
    assert headwise("train", "--data", data, "--out", run, *options, *selection)[0] == 0
    assert re.search(
        r"weights of the classes in the loss, from 0.5\d+ \(ok\) to \d+.\d* \(defect\)", (run / "README.md").read_text()
    )
    metrics = json.loads((run / "metrics.json").read_text())
    test, constant = metrics["metrics"]["test"], metrics["baselines"]["test"]["most frequent label"]
    assert test["accuracy"] < constant["accuracy"]
    assert test["macro_f1"] > constant["macro_f1"]
    assert "learned nothing" not in metrics["verdict"]
    assert f"(macro_f1 {test['macro_f1']:.4f}, baseline" in metrics["verdict"]
    _, stdout, _ = headwise("evaluate", run)
    assert f"Verdict: {metrics['verdict'].removeprefix('test: ')}" in stdout


@pytest.mark.parametrize(("rate", "verdict"), [("0.01", "better than always answering"), ("1e-9", "learned nothing")])
def test_a_run_ends_with_its_verdict(tmp_path: Path, headwise: Headwise, rate: str, verdict: str) -> None:
    labels = ["good", "bad", "bad"] * 40
    data = write(
        tmp_path / "data.csv", ("text", "label"), [(f"a {label} film {i}", label) for i, label in enumerate(labels)]
    )
    options = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16, "--epochs", 4)
    code, stdout, _ = headwise("train", "--data", data, "--out", tmp_path / "run", "--learning-rate", rate, *options)
    assert code == 0
    written = json.loads((tmp_path / "run" / "metrics.json").read_text())["verdict"]
    assert verdict in written
    assert "'bad'" in written
    assert f"Verdict on {written}" in stdout
    assert f"Verdict on {written}." in (tmp_path / "run" / "README.md").read_text()
