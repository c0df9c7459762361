"""Bootstrap of the primary metric over examples, for every label type."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwise.studies.bootstrap import (
    bleu_from_sums,
    bootstrap_primary_metric,
    impression_statistics,
    mean_from_sums,
    translation_statistics,
)
from headwise.studies.plan import Result
from tests.studies.simulated import write_run


def example_runs() -> dict[str, tuple[Mapping[str, Any], Any, Sequence[str]]]:
    """Columns, scores and label names for each label type."""
    random = np.random.default_rng(0)
    sentences = [random.integers(0, 3, random.integers(2, 6)).tolist() for _ in range(40)]
    return {
        "classification": ({"label": random.integers(0, 3, 60)}, random.normal(size=(60, 3)), ["a", "b", "c"]),
        "multi-label": ({"label": random.integers(0, 2, (60, 3))}, random.normal(size=(60, 3)), ["a", "b", "c"]),
        "regression": ({"label": random.normal(size=60)}, random.normal(size=(60, 1)), []),
        "ranking": (
            {"label": random.integers(0, 2, 90), "query": [f"q{i % 30}" for i in range(90)]},
            random.normal(size=(90, 2)),
            ["no", "yes"],
        ),
        "tokens": ({"label": sentences}, [random.normal(size=(len(s), 3)) for s in sentences], ["B-X", "I-X", "O"]),
    }


@pytest.mark.parametrize("label_type", ["classification", "multi-label", "regression", "ranking", "tokens"])
def test_samples_are_centered_on_the_metric(label_type: str, tmp_path: Path) -> None:
    columns, scores, labels = example_runs()[label_type]
    result = write_run(tmp_path, label_type, label_type, "none", 0, columns, scores, labels)
    samples = bootstrap_primary_metric([result, result], "test")
    assert samples is not None
    assert samples.shape == (2000, 2)
    assert (samples[:, 0] == samples[:, 1]).all(), "runs share their samples"
    value = result.metrics["metrics"]["test"][result.metrics["primary_metric"]]
    assert samples.mean() == pytest.approx(value, abs=0.03)
    assert samples.std() > 0


def test_bleu_equals_sacrebleu(tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    random = np.random.default_rng(0)
    references = [" ".join(random.choice(list("abcdefgh"), 9)) for _ in range(50)]
    predicted = [
        " ".join(w if random.random() < 0.8 else "x" for w in line.split()[: random.integers(5, 10)])
        for line in references
    ]
    table = pa.table({"row": list(range(50)), "reference": references, "predicted": predicted})
    result = Result("translation", "plain", 0, tmp_path, {"label_type": "translation"})
    _, statistics = translation_statistics(result, table)
    for rows in (slice(None), slice(0, 20), slice(7, 9)):
        expected = sacrebleu.corpus_bleu(predicted[rows], [references[rows]]).score
        assert bleu_from_sums(statistics[rows].sum(axis=0)) == pytest.approx(expected)
    assert bleu_from_sums(np.array([5.0, 6, 0, 0, 0, 0, 5, 4, 3, 2])) == 0
    assert sacrebleu.corpus_bleu(["a b c"], [["a b c"]]).score == 0
    assert bleu_from_sums(np.array([3.0, 3, 3, 2, 1, 0, 3, 2, 1, 0])) == 0


def test_impressions_without_metric_are_ignored(tmp_path: Path) -> None:
    table = pa.table({"row": [0, 1, 2], "auc": pa.array([0.5, float("nan"), 1.0], pa.float32())})
    result = Result("mind", "plain", 0, tmp_path, {"primary_metric": "auc"})
    ids, statistics = impression_statistics(result, table)
    assert ids.tolist() == [0, 1, 2]
    assert statistics.tolist() == [[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert mean_from_sums(statistics.sum(axis=0)) == 0.75


def test_runs_share_samples_of_common_rows(tmp_path: Path) -> None:
    """The first two runs have the same test rows, the third has others."""
    is_correct = np.tile([True, False], 50)
    labels = np.arange(100) % 2
    scores = np.stack([np.where(is_correct, labels, 1 - labels) == i for i in (0, 1)], axis=1).astype(float)
    results = [
        write_run(tmp_path, "classification", "t", "none", seed, {"label": labels}, scores, ["a", "b"], list(rows))
        for seed, rows in enumerate((range(100), range(100), range(100, 200)))
    ]
    samples = bootstrap_primary_metric(results, "test")
    assert samples is not None
    assert (samples[:, 0] == samples[:, 1]).all()
    assert abs(np.corrcoef(samples[:, 0], samples[:, 2])[0, 1]) < 0.1
