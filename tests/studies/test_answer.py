"""From a study's runs to its answer: figures, words, tables and a page."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from scipy import stats

from headwise.errors import UserError
from headwise.studies import report
from headwise.studies.analysis import Analysis, analyze
from headwise.studies.bootstrap import bleu, mean, of_impressions, of_translations, resampled
from headwise.studies.result import Result
from tests.studies.simulated import classified, rated, written

ROWS = 400


def study(folder: Path, methods: Mapping[str, float], seeds: int, *, task: str = "sst2") -> list[Result]:
    """Methods of known accuracy, judged on the same rows, some of which are hard for all of them."""
    draw = np.random.default_rng(len(task))
    hard = draw.random(ROWS)
    return [
        classified(folder, name, seed, hard < accuracy + draw.normal(0, 0.01), task)
        for seed in range(seeds)
        for name, accuracy in methods.items()
    ]


def words(found: Analysis) -> str:
    told = io.StringIO()
    found.tell(Console(file=told, width=200))
    return told.getvalue()


def test_figures_are_those_of_scipy(tmp_path: Path) -> None:
    runs = study(tmp_path, {"none": 0.80, "plain": 0.80, "distance-aware": 0.86}, seeds=8)
    found = analyze(runs, "none")
    (task,) = found.tasks
    own = {m.name: np.array(list(m.figures.values())) for m in task.methods}
    for name, values in own.items():
        assert values == pytest.approx(
            [100 * r.metrics["metrics"]["test"]["accuracy"] for r in runs if r.method == name]
        )
    for one in task.comparisons:
        wanted = stats.ttest_rel(own[one.method], own["none"])
        assert one.over_seeds.p == pytest.approx(wanted.pvalue)
        assert (one.over_seeds.low, one.over_seeds.high) == pytest.approx(tuple(wanted.confidence_interval(0.95)))
        assert one.over_examples is not None
        assert one.over_both is not None
        assert one.over_both.high - one.over_both.low > one.over_seeds.high - one.over_seeds.low
    p = {one.method: one.over_seeds.p for one in task.comparisons}
    corrected = {one.method: one.corrected for one in task.comparisons}
    assert corrected["distance-aware"] == pytest.approx(2 * p["distance-aware"])
    assert corrected["plain"] == pytest.approx(p["plain"])


def test_a_difference_is_told_in_words(tmp_path: Path) -> None:
    found = analyze(study(tmp_path, {"none": 0.80, "plain": 0.80, "distance-aware": 0.86}, seeds=10), "none")
    text = words(found)
    assert "distance-aware beats none by " in text
    assert "after Holm, 10 seeds)." in text
    assert "plain " in text
    assert "not significant (p = " in text
    assert "seeds would be needed to see a difference of this size" in text
    assert "Warning" not in text


def test_a_loss_is_told_in_words(tmp_path: Path) -> None:
    (told,) = analyze(study(tmp_path, {"none": 0.86, "guided": 0.80}, seeds=10), "none").sentences
    assert told.startswith("guided is worse than none by ")
    assert "95% CI " in told
    assert "−" not in told, "an amount and its interval are both told as positive numbers"


def test_five_seeds_are_warned_about(tmp_path: Path) -> None:
    text = words(analyze(study(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=5), "none"))
    assert "5 seeds cannot go below p = 0.0625 in a permutation test" in text
    assert "with 6 seeds it could" in text
    assert "The permutation test does not confirm it (p = 0.062)." in text


def test_one_seed_says_nothing(tmp_path: Path) -> None:
    text = words(analyze(study(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=1), "none"))
    assert "with one seed, which says nothing about chance" in text
    assert "nan" not in text


def test_equal_differences_do_not_count_as_certain(tmp_path: Path) -> None:
    right = np.arange(100) < 80
    runs = [classified(tmp_path, "none", seed, right) for seed in range(3)]
    runs += [classified(tmp_path, "plain", seed, np.arange(100) < 82) for seed in range(3)]
    (told,) = analyze(runs, "none").sentences
    assert "every seed gave this difference" in told
    assert "not significant (p = 0.25" in told


def test_lower_is_better_where_it_is_an_error(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    noise = draw.normal(0, 1, ROWS)
    runs = [
        rated(tmp_path, name, seed, (size + draw.normal(0, 0.01)) * noise)
        for seed in range(8)
        for name, size in {"none": 1.0, "plain": 1.1, "distance-aware": 0.9}.items()
    ]
    found = analyze(runs, "none")
    worse, better = found.sentences
    assert better.startswith("distance-aware beats none by 0.1")
    assert "rmse" in better
    assert worse.startswith("plain is worse than none by 0.09")
    by_name = {one.method: one for one in found.tasks[0].comparisons}
    assert by_name["distance-aware"].over_seeds.value < 0 < by_name["distance-aware"].gain
    assert "lower is better" in words(found)


def test_several_tasks_have_ranks(tmp_path: Path) -> None:
    methods = {"none": 0.80, "plain": 0.70, "distance-aware": 0.86}
    runs = [run for task in ("a", "bb", "ccc") for run in study(tmp_path, methods, seeds=6, task=task)]
    draw = np.random.default_rng(0)
    noise = draw.normal(0, 1, ROWS)
    for seed in range(6):
        for name, size in {"none": 1.0, "plain": 1.2, "distance-aware": 0.8}.items():
            runs.append(rated(tmp_path, name, seed, (size + draw.normal(0, 0.01)) * noise))
    found = analyze(runs, "none")
    assert found.ranks is not None
    assert found.ranks.average == {"none": 2.0, "plain": 3.0, "distance-aware": 1.0}
    assert "Average ranks over 4 tasks: distance-aware 1.00, none 2.00, plain 3.00." in words(found)


def test_missing_runs_are_told(tmp_path: Path) -> None:
    runs = study(tmp_path, {"none": 0.80, "plain": 0.86, "rpr": 0.86}, seeds=8)
    runs = [run for run in runs if not (run.method == "plain" and run.seed > 5)]
    runs = [run for run in runs if not (run.method == "rpr" and run.seed != 7)]
    runs = [run for run in runs if not (run.method == "none" and run.seed == 7)]
    found = analyze(runs, "none")
    text = words(found)
    assert "plain has 6 of 7 seeds" in text
    assert "rpr shares no seed with what it is to be compared with" in text
    assert [one.method for one in found.tasks[0].comparisons] == ["plain"]


def test_without_predictions_there_is_no_bootstrap(tmp_path: Path) -> None:
    runs = study(tmp_path, {"none": 0.80, "plain": 0.86}, seeds=6)
    (runs[0].folder / "predictions.parquet").unlink()
    found = analyze(runs, "none")
    assert found.tasks[0].comparisons[0].over_examples is None
    assert "Chance in the test examples is not counted" in words(found)


def test_few_test_rows_that_differ_by_seed(tmp_path: Path) -> None:
    """A draw may hold none of a seed's rows; it tells nothing, and is left out."""
    labels, runs = np.array([0, 1, 1]), []
    for seed in range(6):
        for name in ("none", "plain"):
            scores = np.random.default_rng(seed + len(name)).random((3, 2))
            rows = list(range(3 * seed, 3 * seed + 3))
            runs.append(
                written(tmp_path, "classification", "own", name, seed, {"label": labels}, scores, ["a", "b"], rows)
            )
    (one,) = analyze(runs, "none").tasks[0].comparisons
    assert one.over_examples is not None
    assert np.isfinite([one.over_examples.low, one.over_examples.high, one.over_examples.p]).all()


def test_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run has finished"):
        analyze([], "none")
    with pytest.raises(UserError, match="no run of the baseline 'none'"):
        analyze(study(tmp_path, {"plain": 0.8}, seeds=2), "none")


def kinds() -> dict[str, tuple[Mapping[str, Any], Any, Sequence[str]]]:
    """Of each kind of task some rows, with scores."""
    draw = np.random.default_rng(0)
    tags = ["B-X", "I-X", "O"]
    sentences = [draw.integers(0, 3, draw.integers(2, 6)).tolist() for _ in range(40)]
    return {
        "classification": ({"label": draw.integers(0, 3, 60)}, draw.normal(size=(60, 3)), ["a", "b", "c"]),
        "multi-label": ({"label": draw.integers(0, 2, (60, 3))}, draw.normal(size=(60, 3)), ["a", "b", "c"]),
        "regression": ({"label": draw.normal(size=60)}, draw.normal(size=(60, 1)), []),
        "ranking": (
            {"label": draw.integers(0, 2, 90), "query": [f"q{i % 30}" for i in range(90)]},
            draw.normal(size=(90, 2)),
            ["no", "yes"],
        ),
        "tokens": ({"label": sentences}, [draw.normal(size=(len(s), 3)) for s in sentences], tags),
    }


@pytest.mark.parametrize("kind", ["classification", "multi-label", "regression", "ranking", "tokens"])
def test_bootstrap_over_examples_is_around_the_figure(kind: str, tmp_path: Path) -> None:
    columns, scores, labels = kinds()[kind]
    result = written(tmp_path, kind, kind, "none", 0, columns, scores, labels)
    samples = resampled([result, result], "test")
    assert samples.shape == (2000, 2)
    assert (samples[:, 0] == samples[:, 1]).all(), "runs share their draws"
    figure = result.metrics["metrics"]["test"][result.metrics["primary_metric"]]
    assert samples.mean() == pytest.approx(figure, abs=0.03)
    assert samples.std() > 0


def test_bootstrap_of_translations_is_sacrebleus(tmp_path: Path) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    draw = np.random.default_rng(0)
    references = [" ".join(draw.choice(list("abcdefgh"), 9)) for _ in range(50)]
    said = [
        " ".join(w if draw.random() < 0.8 else "x" for w in line.split()[: draw.integers(5, 10)]) for line in references
    ]
    table = pa.table({"row": list(range(50)), "reference": references, "predicted": said})
    result = Result("translation", "plain", 0, tmp_path, {"kind": "translation"})
    _, parts = of_translations(result, table)
    for chosen in (slice(None), slice(0, 20), slice(7, 9)):
        wanted = sacrebleu.corpus_bleu(said[chosen], [references[chosen]]).score
        assert bleu(parts[chosen].sum(axis=0)) == pytest.approx(wanted)
    assert bleu(np.array([5.0, 6, 0, 0, 0, 0, 5, 4, 3, 2])) == 0


def test_bootstrap_of_clicks_leaves_out_impressions_without_a_figure(tmp_path: Path) -> None:
    table = pa.table({"row": [0, 1, 2], "auc": pa.array([0.5, float("nan"), 1.0], pa.float32())})
    names, parts = of_impressions(Result("mind", "plain", 0, tmp_path, {"primary": "auc"}), table)
    assert names.tolist() == [0, 1, 2]
    assert parts.tolist() == [[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert mean(parts.sum(axis=0)) == 0.75


def test_methods_are_compared_with_their_own_controls(tmp_path: Path) -> None:
    accuracies = {"bert": 0.7, "bert+mdg": 0.76, "roberta": 0.8, "roberta+mdg": 0.86}
    runs = study(tmp_path, accuracies, seeds=8)
    found = analyze(runs, "bert", {"bert+mdg": "bert", "roberta+mdg": "roberta", "albert+mdg": "albert"})
    assert [(one.method, one.baseline) for one in found.tasks[0].comparisons] == [
        ("bert+mdg", "bert"),
        ("roberta+mdg", "roberta"),
    ]
    assert "roberta+mdg beats roberta by " in words(found)


def test_the_recipe_is_the_baselines_whoever_was_first(tmp_path: Path) -> None:
    runs = study(tmp_path, {"few rows": 0.7, "all rows": 0.8}, seeds=2)
    for run in runs:
        run.metrics["dataset"] = f"{run.method}, seed {run.seed}."
    assert analyze(runs, "all rows").tasks[0].recipe == "all rows, seed 0."


def test_rows_of_other_splits_are_drawn_together(tmp_path: Path) -> None:
    """Two seeds whose test rows are partly the same: a row that both have is drawn for both at once."""
    right = np.tile([True, False], 50)
    labels = np.arange(100) % 2
    scores = np.stack([np.where(right, labels, 1 - labels) == i for i in (0, 1)], axis=1).astype(float)
    both = [
        written(tmp_path, "classification", "t", "none", s, {"label": labels}, scores, ["a", "b"], list(rows))
        for s, rows in enumerate((range(100), range(100), range(100, 200)))
    ]
    samples = resampled(both, "test")
    assert (samples[:, 0] == samples[:, 1]).all()
    assert abs(np.corrcoef(samples[:, 0], samples[:, 2])[0, 1]) < 0.1


def test_the_report_is_one_file_and_its_tables(tmp_path: Path) -> None:
    runs = study(tmp_path / "runs", {"none": 0.80, "a_b & c": 0.86}, seeds=6)
    out = tmp_path / "out"
    report.write(analyze(runs, "none"), out)
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "table.csv", "table.md", "table.tex"]
    html = (out / "report.html").read_text()
    assert "a_b &amp; c beats none by" in html
    assert html.count("<img") == 4, "boxes, differences, dev figures, losses"
    assert "peak memory, MiB (process)" in html
    assert "http" not in html.replace("http-equiv", "")
    tex = (out / "table.tex").read_text()
    assert r"a\_b \& c" in tex
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 1
    lines = list(csv.DictReader((out / "table.csv").open()))
    assert [line["method"] for line in lines] == ["none", "a_b & c"]
    own, base = (
        np.mean([r.metrics["metrics"]["test"]["accuracy"] for r in runs if r.method == m]) for m in ("a_b & c", "none")
    )
    assert float(lines[1]["difference"]) == pytest.approx(100 * (own - base))
    assert lines[0]["difference"] == ""
    assert "| a_b & c |" in (out / "table.md").read_text()
