"""Results of each class, calibration and thresholds, compared with scikit-learn, seqeval and brute force."""

from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, List
from scipy.special import expit, softmax
from seqeval.metrics import classification_report as entity_report
from sklearn.metrics import classification_report, f1_score, log_loss

from headwise.tasks.metrics.calibration import compute_calibration, fit_temperature, to_probabilities
from headwise.tasks.metrics.classes import compute_confusion_matrix, compute_per_class
from headwise.tasks.metrics.thresholds import tune_thresholds


def check_report(per_class: dict[str, dict[str, float]], expected: Any) -> None:
    for label, values in per_class.items():
        theirs = {name.replace("-score", ""): value for name, value in expected[label].items()}
        assert values == pytest.approx(theirs)


def test_classes_equal_sklearns_report() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 3, 200), rng.normal(size=(200, 4))
    scores[:, 1] -= 2  # rarely predicted; class 3 never occurs
    per_class = compute_per_class("classification", scores, Dataset.from_dict({"label": labels}), list("abcd"))
    options: Any = {"labels": range(4), "target_names": list("abcd"), "output_dict": True, "zero_division": 0}
    check_report(per_class, classification_report(labels, scores.argmax(axis=1), **options))
    assert per_class["d"]["support"] == 0


def test_several_classes_equal_sklearns_report() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (100, 3)), rng.normal(size=(100, 3))
    per_class = compute_per_class("multi-label", scores, Dataset.from_dict({"label": labels.tolist()}), list("abc"))
    check_report(
        per_class,
        classification_report(labels, scores > 0, target_names=list("abc"), output_dict=True, zero_division=0),
    )


def test_types_of_entities_equal_seqevals_report() -> None:
    rng = np.random.default_rng(0)
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    tags, scores = [rng.integers(0, 5, 12).tolist() for _ in range(20)], list(rng.normal(size=(20, 12, 5)))
    rows = Dataset.from_dict({"label": tags}).cast_column("label", List(ClassLabel(names=names)))
    true = [[names[tag] for tag in sentence] for sentence in tags]
    predicted = [[names[tag] for tag in sentence.argmax(axis=1)] for sentence in scores]
    per_class = compute_per_class("tokens", scores, rows, names)
    assert list(per_class) == ["LOC", "PER"]
    check_report(per_class, entity_report(true, predicted, output_dict=True))


def test_rows_of_the_confusion_matrix_are_true_labels() -> None:
    rows = Dataset.from_dict({"label": [0, 0, 2]})
    assert compute_confusion_matrix(np.eye(3)[[0, 1, 1]], rows, 3) == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("label_type", ["classification", "multi-label"])
def test_calibrated_probabilities_have_almost_no_calibration_error(label_type: str) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20_000, 3)) * 2
    probabilities = to_probabilities(label_type, scores)
    if label_type == "multi-label":
        labels = (rng.random(scores.shape) < probabilities).astype(int)
    else:
        labels = np.array([rng.choice(3, p=row) for row in probabilities])
    calibrated = compute_calibration(label_type, probabilities, labels)
    overconfident = compute_calibration(label_type, to_probabilities(label_type, 4 * scores), labels)
    assert calibrated["ece"] < 0.02
    assert overconfident["ece"] > 0.1
    num_predictions = labels.size if label_type == "multi-label" else len(labels)
    assert sum(b["count"] for b in calibrated["bins"]) == num_predictions
    assert all(b["low"] <= b["confidence"] <= b["high"] for b in calibrated["bins"])


def test_calibration_error_by_hand() -> None:
    probabilities = [[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.3, 0.7]]
    calibration = compute_calibration("classification", probabilities, [0, 1, 1, 1])
    assert calibration["ece"] == pytest.approx(0.5 * 0.4 + 0.5 * 0.3)
    assert [b["accuracy"] for b in calibration["bins"]] == [1.0, 0.5]


def test_temperature_of_many_rows_minimizes_the_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2000, 3)) * 2
    labels = np.array([rng.choice(3, p=row) for row in softmax(scores, axis=1)])
    temperature = fit_temperature(3 * scores, labels)
    assert temperature == pytest.approx(3, rel=0.1), "the scores are three times too large"
    losses = {t: log_loss(labels, softmax(3 * scores / t, axis=1)) for t in (temperature, 0.9 * temperature, 3.5)}
    assert min(losses, key=lambda t: losses[t]) == temperature


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_temperature_of_few_rows_improves_their_probabilities(spread: float) -> None:
    """Also if all predictions are right or wrong, for which the best temperature would be 0 or infinite."""
    scores = spread * np.eye(3)[np.arange(60) % 3]
    for labels, improves in ((np.arange(60) % 3, np.less), (np.arange(1, 61) % 3, np.greater)):
        temperature = fit_temperature(scores, labels)
        assert improves(temperature, 1) or spread == 30, "confident scores that are right stay"
        assert 0.05 < temperature < 20
        loss, calibrated = (log_loss(labels, softmax(scores / t, axis=1), labels=[0, 1, 2]) for t in (1.0, temperature))
        assert calibrated <= loss + 1e-9


def test_temperature_without_rows() -> None:
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0, dtype=int)) == pytest.approx(1, abs=1e-4)


def test_the_shared_threshold_has_the_best_micro_f1() -> None:
    rng = np.random.default_rng(0)
    labels = np.stack([np.arange(60) % 10 == column for column in range(3)], axis=1).astype(
        int
    )  # too few for each class
    probabilities = expit(rng.normal(size=labels.shape) + 2 * labels - 3)
    thresholds = tune_thresholds(probabilities, labels)
    assert len(set(thresholds)) == 1
    best = max(f1_score(labels, probabilities > t, average="micro", zero_division=0) for t in np.unique(probabilities))
    assert f1_score(labels, probabilities > thresholds, average="micro") == pytest.approx(best)
    assert best > f1_score(labels, probabilities > 0.5, average="micro") + 0.1, "0.5 is far too high"


def test_classes_with_different_scales_get_their_own_thresholds() -> None:
    labels = np.stack([np.arange(60) % 2, np.arange(60) % 3 == 0], axis=1).astype(int)
    probabilities = np.where(labels == 1, [0.9, 0.2], [0.6, 0.1])
    thresholds = tune_thresholds(probabilities, labels)
    assert 0.6 < thresholds[0] < 0.9
    assert 0.1 < thresholds[1] < 0.2


def test_thresholds_stay_at_one_half_with_few_labels_or_if_nothing_is_gained() -> None:
    labels = np.array([[1], [0]] * 5)
    assert tune_thresholds(np.where(labels[:4] == 1, 0.3, 0.1), labels[:4]).tolist() == [0.5]
    assert tune_thresholds(np.full((40, 1), 0.7), np.tile(labels, (4, 1))).tolist() == [0.5]
