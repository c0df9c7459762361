"""Power before a study: the formula agrees with simulated studies, and the sentence says what it is based on."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwise.cli import main
from headwise.studies import statistics
from headwise.studies.analysis import Metric
from headwise.studies.plan import Result
from headwise.studies.power import (
    DISAGREEMENT,
    EvaluationSet,
    describe_power,
    expected_std,
    load_test_set,
    measure_row_std,
)
from headwise.studies.study import Study
from headwise.training import TextConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.translation.config import TranslationConfig
from tests.studies.fakes import work, write_run
from tests.studies.simulated import classification_run
from tests.training.conftest import rows, write
from tests.training.recommendation.conftest import log
from tests.training.translation.conftest import pairs

__all__ = ["log", "pairs"]

NUM_STUDIES = 2000
ACCURACY = Metric("accuracy", True, "test")


def simulate_studies(num_rows: int, seeds: int, difference: float, seed_std: float, disagreement: float) -> Any:
    """Return the differences of two methods, (studies, seeds), in points.

    The methods disagree on a share of the test rows, of which the better one has more than half. The seed changes by
    how much.
    """
    rng = np.random.default_rng(0)
    shape = (NUM_STUDIES, seeds)
    effect = (difference + rng.normal(0, seed_std, shape)) / 100
    num_discordant = rng.binomial(num_rows, disagreement, shape)
    wins = rng.binomial(num_discordant, np.clip((1 + effect / disagreement) / 2, 0, 1))
    return 100 * (2 * wins - num_discordant) / num_rows


@pytest.mark.parametrize(("num_rows", "seeds"), [(872, 5), (872, 10), (7600, 10), (300, 20)])
def test_the_stated_difference_is_detected_with_the_stated_power(num_rows: int, seeds: int) -> None:
    std = expected_std(100 * math.sqrt(DISAGREEMENT), num_rows, seed_std=0.5)
    difference = statistics.min_detectable_difference(std, seeds)
    assert difference is not None
    differences = simulate_studies(num_rows, seeds, difference, 0.5, DISAGREEMENT)
    assert differences.std(axis=1, ddof=1).mean() == pytest.approx(std, rel=0.07)
    power = (statistics.t_test(differences) < statistics.ALPHA).mean()
    assert power == pytest.approx(statistics.POWER, abs=0.03)


def test_half_of_the_difference_is_rarely_detected() -> None:
    std = expected_std(100 * math.sqrt(DISAGREEMENT), 872)
    difference = statistics.min_detectable_difference(std, 10)
    assert difference is not None
    differences = simulate_studies(872, 10, difference / 2, 0.5, DISAGREEMENT)
    assert (statistics.t_test(differences) < statistics.ALPHA).mean() < 0.4


def simulate_pair(directory: Path, name: str, num_rows: int, disagreement: float, seed: int) -> tuple[Result, Result]:
    """Write runs of two equally good methods that disagree on a share of the rows of dev and test."""
    rng = np.random.default_rng(seed)
    correct = rng.random(num_rows) < 0.8
    results = []
    for method, is_correct in (("a", correct), ("b", correct ^ (rng.random(num_rows) < disagreement))):
        result = classification_run(directory / name, method, seed, is_correct)
        path = result.run_dir / "predictions.parquet"
        test = pq.read_table(path)
        dev = test.set_column(0, "split", pa.array(["dev"] * num_rows)).slice(0, num_rows // 2)
        pq.write_table(pa.concat_tables([dev, test]), path)
        metrics = result.metrics["metrics"]
        results.append(
            Result(**{**vars(result), "metrics": {**result.metrics, "metrics": {**metrics, "dev": metrics["test"]}}})
        )
    return results[0], results[1]


@pytest.mark.parametrize("disagreement", [0.05, 0.3])
def test_the_measured_spread_is_that_of_the_disagreement(disagreement: float, tmp_path: Path) -> None:
    pair = simulate_pair(tmp_path, "pair", 4000, disagreement, 0)
    row_std = measure_row_std([pair])
    # Flipped rows are mostly correct ones, so that the mean difference is not 0.
    gap = 0.6 * disagreement
    assert row_std == pytest.approx(100 * math.sqrt(disagreement - gap**2), rel=0.08)


def test_methods_with_equal_results_on_dev_measure_nothing(tmp_path: Path) -> None:
    """Otherwise the sentence says that a difference of 0 can be seen."""
    assert measure_row_std([simulate_pair(tmp_path, "pair", 20, 0.0, 0)]) is None


def test_the_sentence_states_difference_test_set_and_assumption() -> None:
    test_set = EvaluationSet(872, ACCURACY, "classification")
    text = describe_power(test_set, 1.0, 10, 3, "Assumed.")
    assert text.startswith("With 10 seeds and this test set (872 rows), a difference of 1.2 points can be seen")
    assert "80% power, paired t-test at 5% after correction for 3 comparisons" in text
    assert text.endswith("Assumed.")
    few = describe_power(test_set, 1.0, 5, 1, "Assumed.")
    assert "a difference of 1.7 points can be seen" in few
    assert "The permutation test needs at least 6 seeds." in few
    assert describe_power(test_set, 1.0, 1, 1, "") == "One seed allows no statistical statement."
    assert describe_power(test_set, 20.0, 2, 5, "").endswith("no difference can be seen.")
    bleu = EvaluationSet(1000, Metric("bleu", True, "test"), "translation")
    assert "1,000 sentences" in describe_power(bleu, 1.0, 10, 1, "")
    assert "BLEU can be seen" in describe_power(bleu, 1.0, 10, 1, "")


def test_size_of_test_sets(reviews: Path, log: Path, pairs: Path) -> None:
    texts = load_test_set(TextConfig(data=(str(reviews),)))
    assert (texts.num_rows, texts.metric.name, texts.metric.split) == (16, "accuracy", "test")
    clicks = load_test_set(RecommendationConfig(task="mind", data=(str(log),)))
    assert (clicks.num_rows, clicks.metric.name) == (20, "auc")
    sentences = load_test_set(TranslationConfig(data=(str(pairs),), source="en", target="de"))
    assert (sentences.num_rows, sentences.metric.name) == (40, "bleu")


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study_log: list[str]) -> list[str]:
    """Messages of a study and its runs, in order."""

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        study_log.append(f"run seed {config.seed}")
        result = simulate_pair(tmp_path / "simulated", f"{len(study_log)}", 100, 0.1, config.seed)[
            config.model == "rpr"
        ]
        metrics = {**write_run(run_dir, config, {}), **result.metrics, "task": "reviews.csv"}
        (run_dir / "predictions.parquet").write_bytes((result.run_dir / "predictions.parquet").read_bytes())
        (run_dir / "metrics.json").write_text(json.dumps(metrics))
        return metrics

    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    write(tmp_path / "reviews.csv", ("text", "label"), list(rows(60)))
    return study_log


def test_power_is_stated_before_the_first_run_and_after_the_trials(tmp_path: Path, order: list[str]) -> None:
    args = ["compare", "--data", str(tmp_path / "reviews.csv"), "--methods", "rpr", "--seeds", "7", "--tune", "2"]
    assert main([*args, "--out", str(tmp_path / "study")]) == 0
    stated = [i for i, line in enumerate(order) if "can be seen" in line]
    trials = [i for i, line in enumerate(order) if line == "run seed 1000"]
    final = [i for i, line in enumerate(order) if line == "run seed 0"]
    assert len(stated) == 2
    assert stated[0] < min(trials) <= max(trials) < stated[1] < min(final)
    assert "With 7 seeds and this test set (6 rows)" in order[stated[0]]
    assert "disagree on 10% of the rows" in order[stated[0]]
    assert "on dev in their trials" in order[stated[1]]
    assert "(6 rows)" in order[stated[1]], "the size of the test set, on which trials are not evaluated"
    assert "on dev in their trials" in (tmp_path / "study" / "report.html").read_text()
    order.clear()
    assert main(["compare", "--resume", "--out", str(tmp_path / "study")]) == 0
    assert not any("can be seen" in line for line in order)


@pytest.mark.parametrize(
    ("tune", "based_on"),
    [((), "disagree on 10% of the rows"), (("--tune", "2"), "on dev in their trials")],
)
def test_more_seeds_renew_the_sentence(tmp_path: Path, order: list[str], tune: tuple[str, ...], based_on: str) -> None:
    out = tmp_path / "study"
    args = ["compare", "--data", str(tmp_path / "reviews.csv"), "--methods", "rpr", "--seeds", "6", *tune]
    assert main([*args, "--out", str(out)]) == 0
    order.clear()
    assert main(["compare", "--resume", "--seeds", "9", "--out", str(out)]) == 0
    stated = [i for i, line in enumerate(order) if "can be seen" in line]
    assert len(stated) == 1
    assert "With 9 seeds" in order[stated[0]]
    assert based_on in order[stated[0]]
    assert stated[0] < order.index("run seed 6")
    report = (out / "report.html").read_text()
    assert "With 9 seeds" in report
    assert "With 6 seeds" not in report
    order.clear()
    assert main(["compare", "--resume", "--out", str(out)]) == 0
    assert not any("can be seen" in line for line in order), "the number of seeds is the same"


def test_data_that_cannot_be_read_is_an_error_before_the_first_run(tmp_path: Path, order: list[str]) -> None:
    (tmp_path / "broken.csv").write_text("no columns")
    args = ["compare", "--data", str(tmp_path / "broken.csv"), "--methods", "rpr", "--seeds", "2"]
    assert main([*args, "--out", str(tmp_path / "study")]) == 2
    assert not any("run seed" in line for line in order)
    assert not (tmp_path / "study").exists()
