"""What a user sees of a run's results: the printed lines, `metrics.json`, the report, the card and its metadata."""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard, ModelCardData
from sklearn.metrics import confusion_matrix

from headwise.inspection import draw_curves
from headwise.training import RunResult, TextConfig, evaluate, predict, train
from headwise.training.core.card import describe_base_model
from headwise.training.core.printing import format_evaluation, format_result
from headwise.training.core.result_tables import format_details
from headwise.training.core.run_settings import change_settings, evaluated_splits
from headwise.training.inspect import inspect
from headwise.training.registry import load_config
from tests.training.conftest import Headwise, rows, write

SMALL: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "learning_rate": 0.01}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run on 1,200 rows, of which a tenth has the wrong label."""
    generator = random.Random(0)
    lines = [(text, "positive" if generator.random() < 0.1 else label) for text, label in rows(1200)]
    data = write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), lines)
    return train(TextConfig(data=(str(data),), epochs=2, **SMALL), tmp_path_factory.mktemp("runs") / "run")


def test_results_only(run: RunResult, tmp_path: Path) -> None:
    """Runs of a study whose model is not kept have the same results, without a model, card and report."""
    with change_settings(results_only=True):
        again = train(load_config(run.run_dir / "run.yaml"), tmp_path / "run")
    files = {path.name for path in again.run_dir.iterdir() if path.is_file()}
    assert files == {"run.yaml", "metrics.json", "predictions.parquet"}
    assert again.metrics["metrics"] == run.metrics["metrics"]


def test_evaluation_on_dev_only(run: RunResult, tmp_path: Path) -> None:
    """Trials of a study have the same results on dev, and none on test."""
    with change_settings(only_split="dev"):
        trial = train(load_config(run.run_dir / "run.yaml"), tmp_path / "run")
        assert evaluated_splits(("train", "dev", "test")) == ["dev"]
        assert evaluated_splits(("train", "test")) == ["test"], "a run without dev is evaluated on what it has"
    assert trial.metrics["metrics"] == {"dev": run.metrics["metrics"]["dev"]}
    assert trial.metrics["baselines"] == {"dev": run.metrics["baselines"]["dev"]}
    assert set(pq.read_table(trial.run_dir / "predictions.parquet")["split"].to_pylist()) == {"dev"}
    assert evaluated_splits(("train", "dev", "test")) == ["dev", "test"]


def test_classes_and_confusion_matrix(run: RunResult, tmp_path: Path) -> None:
    metrics, text = run.metrics, format_result(run)
    matrix = np.array(metrics["confusion_matrix"]["test"])
    assert matrix.sum() == 120
    assert np.trace(matrix) / matrix.sum() == pytest.approx(metrics["metrics"]["test"]["accuracy"])
    per_class = metrics["per_class"]["test"]
    assert np.mean([x["f1"] for x in per_class.values()]) == pytest.approx(metrics["metrics"]["test"]["macro_f1"])
    assert [x["support"] for x in per_class.values()] == matrix.sum(axis=1).tolist()
    lines = text.splitlines()
    assert [line.split() for line in lines if line.startswith("  negative")][1] == ["negative", *map(str, matrix[0])]
    assert any(line.split()[:2] == ["label", "precision"] for line in lines)
    assert f"expected calibration error: {metrics['calibration']['test']['ece']:.4f}" in text


def test_baselines_and_verdict_are_printed_and_stored(run: RunResult) -> None:
    text, card = format_result(run), (run.run_dir / "README.md").read_text()
    report = (run.run_dir / "report.html").read_text()
    for name in ("most frequent label", "TF-IDF + logistic regression"):
        accuracy = run.metrics["baselines"]["test"][name]["accuracy"]
        assert f"  baseline {name}: accuracy {accuracy:.4f}" in text
        assert f"| test | {name} | {accuracy:.4f} |" in card
        assert f">{name}</td>" in report
    assert run.metrics["verdict"] in text
    assert run.metrics["verdict"] in card
    assert run.metrics["verdict"].split(" (")[0].replace("'", "&#x27;") in report


def test_a_model_below_its_baseline_says_so(tmp_path: Path) -> None:
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(600)))
    config = TextConfig(data=(str(data),), epochs=1, **{**SMALL, "learning_rate": 1e-6})
    run = train(config, tmp_path / "run")
    baselines = run.metrics["baselines"]["test"]
    assert baselines["TF-IDF + logistic regression"]["accuracy"] == 1.0
    assert run.metrics["metrics"]["test"]["accuracy"] < 0.8
    for text in (
        format_result(run),
        (run.run_dir / "README.md").read_text(),
        format_evaluation(evaluate(tmp_path / "run")),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith("Verdict")]
        assert "learned nothing" in line or "below TF-IDF" in line or "not clearly better" in line
    assert run.metrics["verdict"].split(" (")[0].replace("'", "&#x27;") in (run.run_dir / "report.html").read_text()


def test_figures_are_in_the_run_directory_and_in_the_card(run: RunResult) -> None:
    card, report = (run.run_dir / "README.md").read_text(), (run.run_dir / "report.html").read_text()
    for name in ("confusion_matrix.png", "reliability.png"):
        assert (run.run_dir / name).read_bytes().startswith(PNG)
        assert f"]({name})" in card
    assert report.count("data:image/png;base64,") == 4, "confusion matrix, reliability, dev metric and loss"
    assert str(run.run_dir.parent) not in card + report


def test_evaluation_of_another_file_has_baselines_and_classes(run: RunResult, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", ("text", "label"), list(rows(60, seed=4)))
    evaluation = evaluate(run.run_dir, new)
    assert evaluation["baselines"]["most frequent label"]["accuracy"] == 0.5
    assert evaluation["baselines"]["TF-IDF + logistic regression"]["accuracy"] > 0.9
    predict(run.run_dir, new, tmp_path / "out.jsonl")
    predicted = [json.loads(line)["predicted"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = confusion_matrix([label for _, label in rows(60, seed=4)], predicted)
    assert evaluation["confusion_matrix"] == expected.tolist()
    text = format_evaluation(evaluation)
    assert "baseline TF-IDF + logistic regression: accuracy" in text
    assert "Verdict: " in text
    assert not evaluation["baseline_notes"]


def test_evaluation_on_training_texts_says_so(run: RunResult, reviews: Path) -> None:
    evaluation = evaluate(run.run_dir, reviews)
    num_rows = evaluation["rows"]
    (note,) = evaluation["baseline_notes"]
    assert re.fullmatch(rf"the model was trained on \d+ of these {num_rows} texts, so its metrics are too high", note)
    text = format_evaluation(evaluation)
    assert text.startswith(f"reviews.csv ({num_rows} rows)\n")
    assert f"note: {note}" in text


def test_labels_without_rows_are_listed_last() -> None:
    per_class = {f"c{i}": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2} for i in range(12)}
    per_class["absent"] = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert not any("absent" in line for line in format_details({"per_class": per_class}, list(per_class), "test"))


def test_without_the_training_data_there_are_no_baselines(tmp_path: Path) -> None:
    data = write(tmp_path / "reviews.csv", ("text", "label"), list(rows(80)))
    run = train(TextConfig(data=(str(data),), epochs=1, **SMALL), tmp_path / "run")
    new = write(tmp_path / "new.csv", ("text", "label"), list(rows(20, seed=4)))
    write(data, ("text", "label"), list(rows(60)))
    evaluation = evaluate(run.run_dir, new)
    assert evaluation["baselines"] == {}
    assert evaluation["baseline_notes"] == ["no baselines: the training data has changed since training"]
    data.unlink()
    (note,) = evaluate(run.run_dir, new)["baseline_notes"]
    assert note.startswith("no baselines: the training data cannot be read (")
    assert f"note: {note}" in format_evaluation(evaluate(run.run_dir, new))


def test_probabilities_are_calibrated_on_dev(run: RunResult, tmp_path: Path) -> None:
    temperature = run.metrics["decision"]["temperature"]
    assert temperature != 1.0
    assert f"temperature of {temperature:.3g} (fit on dev)" in (run.run_dir / "README.md").read_text()
    data = write(tmp_path / "new.csv", ("text", "label"), list(rows(200, seed=7)))
    evaluation = evaluate(run.run_dir, data)
    predict(run.run_dir, data, tmp_path / "out.jsonl")
    output = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    confidence = [row["confidence"] for row in output]
    assert all(row["confidence"] == max(row["probability_negative"], row["probability_positive"]) for row in output)
    mean = sum(b["count"] * b["confidence"] for b in evaluation["calibration"]["bins"]) / 200
    assert mean == pytest.approx(np.mean(confidence), abs=1e-4), "evaluate and predict use the same probabilities"
    viewer = inspect([str(run.run_dir)], tmp_path / "page.html", texts=[(output[0]["text"],)]).viewer
    assert viewer is not None
    prediction = viewer.examples[0].passages[0].prediction
    assert prediction is not None
    for label, probability in prediction.labels:
        assert probability == pytest.approx(output[0][f"probability_{label}"], abs=1e-5), "so does inspect"


def test_confidence_is_compared_with_dev(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "new.csv", ("text",), [(text,) for text, _ in rows(200, seed=7)])
    code, _, err = headwise("predict", run.run_dir, data, "--out", tmp_path / "out.jsonl")
    assert code == 0
    output = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    confidence, quantile = ([row[name] for row in output] for name in ("confidence", "confidence_quantile"))
    order = np.argsort(confidence)
    assert (np.diff(np.array(quantile)[order]) >= 0).all()
    assert 0.2 < np.mean(quantile) < 0.8, "the rows are like those of dev"
    assert f"confidence of the predictions: median {np.median(confidence):.2f}, lowest tenth below " in err
    assert "(dev: median " in err


def test_an_existing_file_is_replaced_only_with_force(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    data = write(tmp_path / "new.csv", ("text",), [("a good film",)])
    out = tmp_path / "out.csv"
    out.write_text("mine")
    code, _, err = headwise("predict", run.run_dir, data, "--out", out)
    assert code == 2
    assert err == f"headwise: error: --out {out}: the file exists; --force replaces it\n"
    assert out.read_text() == "mine"
    assert headwise("predict", run.run_dir, data, "--out", out, "--force")[0] == 0
    assert out.read_text().startswith("text,predicted,")


def test_thresholds_of_several_labels_are_tuned_on_dev(tmp_path: Path) -> None:
    generator = random.Random(0)  # a third of the rows are rare, whatever their text: their probability is below 0.5
    lines = [(text, f"{label}|rare" if generator.random() < 0.33 else label) for text, label in rows(600)]
    data = write(tmp_path / "several.csv", ("text", "labels"), lines)
    run = train(TextConfig(data=(str(data),), label_type="multi-label", epochs=2, **SMALL), tmp_path / "run")
    thresholds = run.metrics["decision"]["thresholds"]
    assert set(thresholds) == {"negative", "positive", "rare"}
    assert thresholds["rare"] < 0.45
    for text in ((run.run_dir / "README.md").read_text(), format_result(run)):
        assert f"which was tuned on dev: negative {thresholds['negative']:.4f}, " in text
    predict(run.run_dir, data, tmp_path / "out.jsonl")
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        row = json.loads(line)
        above = [label for label in thresholds if row[f"probability_{label}"] > thresholds[label]]
        assert row["predicted"] == "|".join(above)
    assert evaluate(run.run_dir)["metrics"] == pytest.approx(run.metrics["metrics"]["test"])


def test_the_card_has_the_metadata_of_the_hub(run: RunResult) -> None:
    card = ModelCard.load(run.run_dir / "README.md")
    data = card.data
    assert isinstance(data, ModelCardData)
    assert data.pipeline_tag == "text-classification"
    assert data.license == "unknown"
    assert data.eval_results is not None
    assert {(x.metric_name, x.metric_value) for x in data.eval_results} == set(run.metrics["metrics"]["test"].items())
    assert {(x.task_type, x.dataset_name, x.dataset_split) for x in data.eval_results} == {
        ("text-classification", "reviews", "test")
    }
    assert not hasattr(data, "base_model") or data.base_model is None, "trained from scratch"


def test_labels_with_markup(tmp_path: Path) -> None:
    lines = [(text, "<b>_good_" if label == "positive" else "two\nlines") for text, label in rows(60)]
    data = write(tmp_path / "data.csv", ("text", "label"), lines)
    run = train(TextConfig(data=(str(data),), epochs=1, **SMALL), tmp_path / "run")
    card = (run.run_dir / "README.md").read_text()
    assert "Labels: \\<b\\>\\_good\\_, two lines." in card
    assert "- labels: \\<b\\>\\_good\\_ 30, two lines 30" in card
    assert "\n1 epoch (" in card
    assert "two lines" in format_result(run)
    assert "two\nlines" not in format_result(run)


def test_the_card_names_the_base_model_and_its_license(bert: Path, reviews: Path, tmp_path: Path) -> None:
    model = shutil.copytree(bert, tmp_path / "model")
    (model / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    config = json.loads((model / "config.json").read_text()) | {"_name_or_path": "someone/small-bert"}
    (model / "config.json").write_text(json.dumps(config))
    run = train(TextConfig(data=(str(reviews),), model=str(model), epochs=1), tmp_path / "run")
    data = ModelCard.load(run.run_dir / "README.md").data
    assert (data.base_model, data.license) == ("someone/small-bert", "mit")
    assert str(tmp_path) not in (run.run_dir / "README.md").read_text()


@pytest.mark.parametrize(
    ("model", "base_model"),
    [
        ("google-bert/bert-base-uncased", "google-bert/bert-base-uncased"),
        ("hub/models--owner--name/snapshots/abc", "owner/name"),
        ("plain-directory", None),
    ],
)
def test_base_models(model: str, base_model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "/bert" not in model:
        (tmp_path / model).mkdir(parents=True)
        (tmp_path / model / "config.json").write_text('{"_name_or_path": "/home/me/model"}')
    assert describe_base_model(model).get("base_model") == base_model
    assert describe_base_model(model)["license"] == "unknown"


def test_the_report_of_a_guided_run_shows_the_guides_term(bert: Path, reviews: Path, tmp_path: Path) -> None:
    curves: list[dict[str, Any]] = []

    def draw(runs: dict[str, Any], **options: Any) -> Any:
        curves.append(runs)
        return draw_curves(runs, **options)

    config = TextConfig(data=(str(reviews),), model=str(bert), epochs=1, guides=("mdg",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwise.inspection.draw_curves", draw)
        train(config, tmp_path / "run")
    assert [list(runs) for runs in curves] == [["eval_accuracy"], ["task_loss"], ["MapDiscrimination"]]
    assert all(len(curve) == 1 for runs in curves[:1] for (curve,) in runs.values()), "one epoch is one point"
