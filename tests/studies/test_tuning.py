"""Values that are chosen on dev, in the two phases of a reproduction."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.studies.reproduction import reproduce
from headwise.studies.reproduction.planning import ReproduceOptions
from headwise.studies.study import Study
from headwise.studies.tuning import choose_candidates, select_final
from tests.studies.fakes import work
from tests.studies.simulated import classification_run

#: The dev and test accuracy of a run, by the weight of its guide. The best weight on dev is the worst one on test.
ACCURACIES = {"": (0.5, 0.5), "0.1": (0.6, 0.9), "0.01": (0.8, 0.6), "0.001": (0.7, 0.95), "0.0001": (0.6, 0.9)}


@pytest.fixture
def model(tmp_path: Path) -> str:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 2}))
    return str(directory)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations of the runs, which take no time and whose metrics are those of `ACCURACIES`."""
    configs: list[Any] = []

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        configs.append(config)
        weight = "".join(guide.partition("=")[2] for guide in config.guides)
        dev, test = ACCURACIES[weight]
        name = f"{len(configs)}"
        result = classification_run(tmp_path / "simulated", name, config.seed, np.arange(200) < 200 * test, "snli")
        metrics: dict[str, Any] = {**result.metrics, "metrics": {"dev": {"accuracy": dev}, **result.metrics["metrics"]}}
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "predictions.parquet").write_bytes((result.run_dir / "predictions.parquet").read_bytes())
        (run_dir / "metrics.json").write_text(json.dumps(metrics))
        return metrics

    monkeypatch.setattr(Study, "run", lambda self, _: work(self, train))
    return configs


def arguments(model: str, tmp_path: Path, *more: str) -> list[str]:
    task = ["--task", f"snli={tmp_path}", "--model", model]
    return ["reproduce", "guiding-table3", *task, "--methods", "MDG", "--out", str(tmp_path / "study"), *more]


def test_weights_are_chosen_on_dev_and_tested_with_other_seeds(
    model: str, tmp_path: Path, trained: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(model, tmp_path, "--seeds", "3")) == 0
    guided = [config for config in trained if config.guides]
    assert [config.guides for config in guided[:4]] == [(f"mdg={x}",) for x in ("0.1", "0.01", "0.001", "0.0001")]
    assert [(config.guides, config.seed) for config in guided[4:]] == [(("mdg=0.01",), seed) for seed in range(3)]
    assert len({config.seed for config in guided[:4]} - {0, 1, 2}) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "+10.00" in output, "60 percent on test, not 90"
    assert "│ MDG │ mdg=0.01 │ 80.00 │ 4 of 4 │" in output
    with (tmp_path / "study" / "candidates.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["values"], float(row["dev_value"])) for row in rows] == [
        ("MDG", "mdg=0.1", 60.0),
        ("MDG", "mdg=0.01", 80.0),
        ("MDG", "mdg=0.001", 70.0),
        ("MDG", "mdg=0.0001", 60.0),
    ]


def test_resuming_adds_seeds_but_no_candidates(model: str, tmp_path: Path, trained: list[Any]) -> None:
    assert main(arguments(model, tmp_path, "--seeds", "2")) == 0
    before = len(trained)
    assert main(["reproduce", "--resume", "--seeds", "3", "--out", str(tmp_path / "study")]) == 0
    assert [(config.guides, config.seed) for config in trained[before:]] == [((), 2), (("mdg=0.01",), 2)]
    assert main(["reproduce", "--resume", "--seeds", "2", "--out", str(tmp_path / "study")]) == 2


def test_studies_interrupted_between_the_phases_continue(
    model: str, tmp_path: Path, trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(reproduce, "enqueue_chosen", stop)
        assert main(arguments(model, tmp_path, "--seeds", "2")) == 130
    assert main(["reproduce", "--resume", "--out", str(tmp_path / "study")]) == 0
    assert [config.guides for config in trained[-2:]] == [("mdg=0.01",), ("mdg=0.01",)]


def test_candidates_are_not_methods_of_the_study(
    model: str, tmp_path: Path, trained: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(model, tmp_path, "--seeds", "2")) == 0
    study = Study.resume(tmp_path / "study")
    assert {result.method for result in select_final(study, study.results())} == {"unguided", "MDG"}
    assert "MDG: mdg" not in (tmp_path / "study" / "table.csv").read_text()
    capsys.readouterr()
    assert main(["studies", str(tmp_path / "study")]) == 0
    output = capsys.readouterr().out
    assert "MDG" in output
    assert "mdg=" not in output, "the best method, not the candidate that is best on test"


def test_a_dev_split_is_required(model: str, tmp_path: Path, trained: list[Any]) -> None:
    options = ReproduceOptions({"snli": str(tmp_path)}, ["MDG"], {}, models=[model])
    study = reproduce.create_reproduction("guiding-table3", options, tmp_path / "study", seeds=1)
    run: Callable[[Any], None] = study.run
    run(None)
    for path in (tmp_path / "study").rglob("metrics.json"):
        metrics = json.loads(path.read_text())
        path.write_text(json.dumps({**metrics, "metrics": {"test": metrics["metrics"]["test"]}}))
    with pytest.raises(UserError, match="chosen on dev, and the data has no dev split"):
        choose_candidates(study)
