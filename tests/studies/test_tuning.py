"""Values that are chosen on dev, and the runs with them."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.studies import tuning
from headwise.studies.reproduction import reproduce
from headwise.studies.reproduction.planning import ReproduceOptions
from headwise.studies.scheduler import AddRuns, run_study
from headwise.studies.study import Study
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.studies.tuning import choose_candidates, select_final
from headwise.studies.worker import Outcome
from headwise.training.core.run_settings import evaluated_splits
from tests.studies.fakes import ThisProcess, fake_train, work, write_run
from tests.studies.simulated import classification_run

#: The dev and test accuracy of a run, by the weight of its guide. The best weight on dev is the worst one on test.
ACCURACIES = {
    "": (0.5, 0.5),
    "0.1": (0.6, 0.9),
    "0.01": (0.8, 0.6),
    "0.001": (0.7, 0.95),
    "0.0001": (0.6, 0.9),
    "1e-05": (0.5, 0.9),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 2}))
    return str(directory)


def train_function(tmp_path: Path, configs: list[Any]) -> Callable[[Any, Path, bool], dict[str, Any]]:
    """Return a function that trains a run in no time, records its configuration and has the metrics of `ACCURACIES`."""

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

    return train


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configurations of runs that take no time, and data in the layout of SNLI."""
    configs: list[Any] = []
    for split in ("train", "dev", "test"):
        rows = "a man,a person,entailment\na man,a dog,contradiction\na man,a friend,neutral\n"
        (tmp_path / f"{split}.csv").write_text(f"premise,hypothesis,label\n{rows}")
    train = train_function(tmp_path, configs)
    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    return configs


def arguments(model: str, tmp_path: Path, *more: str) -> list[str]:
    task = ["--task", f"snli={tmp_path}", "--model", model]
    return ["reproduce", "guiding-table3", *task, "--methods", "MDG", "--out", str(tmp_path / "study"), *more]


def test_weights_are_chosen_on_dev_and_tested_with_other_seeds(
    model: str, tmp_path: Path, trained: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(model, tmp_path, "--seeds", "3")) == 0
    trials, final = ([x for x in trained if (x.seed >= 3) == is_trial] for is_trial in (True, False))
    guided = [config.guides for config in trials if config.guides]
    assert guided[:3] == 3 * [("mdg=1e-05",)], "learning rates are tried first"
    assert len(guided) == 8
    assert sorted(guided[3:]) == sorted((f"mdg={x}",) for x in ("0.1", "0.01", "0.001", "0.0001", "1e-05"))
    rates = [[x.learning_rate for x in trials if bool(x.guides) == is_guided] for is_guided in (True, False)]
    assert sorted(rates[0]) == sorted(rates[1]), "the baseline has as many trials"
    assert [(config.guides, config.seed) for config in final if config.guides] == [
        (("mdg=0.01",), seed) for seed in range(3)
    ]
    captured = capsys.readouterr()
    counts = re.findall(r"^\[(\d+)/(\d+)\] ", captured.err, re.MULTILINE)
    assert [(int(number), total) for number, total in counts] == [(i, "22") for i in range(1, 23)], "16 trials, 6 runs"
    chosen = captured.err.index("MDG: chosen on dev")
    assert captured.err.rindex("MDG: mdg=") < chosen < captured.err.index("MDG, seed 0"), "trials, choice, runs"
    output = " ".join(captured.out.split())
    assert "+10.00" in output, "60 percent on test, not 90"
    assert "│ MDG │ mdg=0.01" in output
    assert output.count("│ 8 of 8 │") == 2
    with (tmp_path / "study" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows if row["seeds"] == "1"] == 6 * ["unguided"] + 8 * ["MDG"]
    assert [row["method"] for row in rows if row["seeds"] == "2"] == ["unguided"], "the center of the second trials"
    dev_values = {row["settings"].split()[0]: float(row["dev_value"]) for row in rows if row["method"] == "MDG"}
    assert dev_values == {f"mdg={weight}": 100 * dev for weight, (dev, _) in ACCURACIES.items() if weight}
    page = (tmp_path / "study" / "report.html").read_text()
    assert "settings chosen on dev" in page


def test_given_values_are_tried_equally_often(model: str, tmp_path: Path, trained: list[Any]) -> None:
    """With --over, the unguided model has fewer combinations of values, and gets more seeds for each."""
    assert main(arguments(model, tmp_path, "--seeds", "1", "--over", "learning_rate", "1e-4", "1e-5")) == 0
    trials = [config for config in trained if config.seed >= 1000]
    assert [sum(bool(x.guides) == is_guided for x in trials) for is_guided in (True, False)] == [10, 10]
    assert {(x.learning_rate, x.guides, x.seed) for x in trials if not x.guides} == {
        (rate, (), seed) for rate in (1e-4, 1e-5) for seed in range(1000, 1005)
    }
    assert {x.seed for x in trials if x.guides} == {1000}


@pytest.mark.long
def test_resuming_adds_seeds_but_no_candidates(model: str, tmp_path: Path, trained: list[Any]) -> None:
    assert main(arguments(model, tmp_path, "--seeds", "2")) == 0
    before = len(trained)
    assert main(["reproduce", "--resume", "--seeds", "3", "--out", str(tmp_path / "study")]) == 0
    assert [(config.guides, config.seed) for config in trained[before:]] == [((), 2), (("mdg=0.01",), 2)]
    assert main(["reproduce", "--resume", "--seeds", "2", "--out", str(tmp_path / "study")]) == 2


@pytest.mark.long
def test_studies_interrupted_after_the_trials_continue(
    model: str, tmp_path: Path, trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(tuning, "enqueue_chosen", stop)
        assert main(arguments(model, tmp_path, "--seeds", "2")) == 130
    assert main(["reproduce", "--resume", "--out", str(tmp_path / "study")]) == 0
    assert [(config.guides, config.seed) for config in trained[-4:]] == [
        (guides, seed) for guides in ((), ("mdg=0.01",)) for seed in range(2)
    ]


def test_settings_are_chosen_after_all_trials(
    model: str, tmp_path: Path, trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study that is interrupted during the trials chooses from all of them when it is resumed."""
    train = train_function(tmp_path, trained)

    def interrupt(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        if len(trained) == 10:  # two trials of MDG have ended
            raise KeyboardInterrupt
        return train(config, run_dir, resume)

    with monkeypatch.context() as context:
        context.setattr(Study, "run", lambda self, _, add_runs=None: work(self, interrupt, add_runs))
        assert main(arguments(model, tmp_path, "--seeds", "2")) == 130
    assert main(["reproduce", "--resume", "--seeds", "3", "--out", str(tmp_path / "study")]) == 0
    trials, final = ([x for x in trained if (x.seed >= 1000) == is_trial] for is_trial in (True, False))
    assert len(trials) == 16
    assert trained.index(final[0]) > max(map(trained.index, trials))
    assert [config.seed for config in final if config.guides] == [0, 1, 2], "seeds that were added before the choice"


@pytest.mark.long
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


def accuracy_of(config: Any) -> tuple[float, float]:
    """Return dev and test accuracy: on dev best at a learning rate of 4e-3, on test at 1e-3."""
    rate = config.learning_rate or 1e-3
    bonus = 0.1 if config.model == "rpr" else 0.0
    dev, test = (0.6 + bonus - 0.05 * abs(np.log(rate / best)) for best in (4e-3, 1e-3))
    return float(dev), float(test)


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Configurations of the runs of a comparison, whose metrics are those of `accuracy_of`."""
    configs: list[Any] = []

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        configs.append(config)
        dev, test = accuracy_of(config)
        splits = {"dev": {"accuracy": dev}, "test": {"accuracy": test + 0.001 * config.seed * (config.model == "rpr")}}
        metrics = {**write_run(run_dir, config, {}), "metrics": splits}
        (run_dir / "metrics.json").write_text(json.dumps(metrics))
        return metrics

    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    (tmp_path / "reviews.csv").write_text("text,label\n" + 10 * "good,1\nbad,0\n")
    return configs


def compare_arguments(tmp_path: Path, *more: str) -> list[str]:
    data = ["--data", str(tmp_path / "reviews.csv"), "--methods", "rpr", "plain", "--seeds", "3"]
    return ["compare", *data, "--out", str(tmp_path / "study"), *more]


def test_compare_tunes_all_methods_and_the_control(
    tmp_path: Path, compared: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments(tmp_path, "--tune", "6")) == 0
    trials, final = ([x for x in compared if (x.seed >= 1000) == is_trial] for is_trial in (True, False))
    assert {model: sum(x.model == model for x in trials) for model in ("none", "plain", "rpr")} == {
        "none": 6,
        "plain": 6,
        "rpr": 6,
    }
    assert {x.seed for x in final} == {0, 1, 2}
    rates = {x.learning_rate for x in trials if x.learning_rate}
    best = min(rates, key=lambda rate: abs(np.log(rate / 4e-3)))
    assert {x.learning_rate for x in final} == {best}, "chosen on dev, although another one is better on test"
    assert sum(2e-3 <= x.learning_rate <= 8e-3 for x in trials if x.learning_rate) == 3 * 4, "near the first best, 4e-3"
    for model in ("rpr", "plain"):
        settings = {(x.scheme_learning_rate, x.scheme_options, x.position_scale) for x in final if x.model == model}
        assert len(settings) == 1
        assert settings <= {(x.scheme_learning_rate, x.scheme_options, x.position_scale) for x in trials}
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("6 of 6") == 3
    assert f"learning_rate={best:g}" in output
    assert "not tuned" not in output
    for name in ("report.html", "table.md"):
        text = (tmp_path / "study" / name).read_text()
        assert "settings chosen on dev" in text
        assert "all trials" in text
    with (tmp_path / "study" / "trials.csv").open() as file:
        assert sum(int(row["seeds"]) for row in csv.DictReader(file)) == 18
    table = (tmp_path / "study" / "table.csv").read_text()
    assert "learning_rate" not in table, "trials are not methods of the study"


class SlowTrial(ThisProcess):
    """An engine for any number of runs at the same time, in which one trial ends after all other runs."""

    num_entered = 0
    order: list[tuple[str, int]]

    def __enter__(self) -> "SlowTrial":
        self.num_entered, self.order = self.num_entered + 1, []
        return self

    def has_capacity(self, group: str, num_to_start: int) -> bool:
        return True

    def submit(self, claimed: ClaimedTrial) -> None:
        self.order.append((claimed.run.method, claimed.run.seed))
        super().submit(claimed)

    def wait(self, seconds: float) -> list[Outcome]:
        slow, *others = sorted(self.outcomes, key=lambda outcome: outcome.trial_id)
        self.outcomes = [slow] if others else []
        return others or [slow]


def test_runs_start_when_the_trials_of_their_method_have_ended(
    tmp_path: Path, compared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods do not wait for the slow trial of another one, and the workers are kept."""
    engines: list[SlowTrial] = []

    def run(study: Study, resources: Any, add_runs: AddRuns | None = None) -> None:
        engines.append(SlowTrial(study, fake_train))
        run_study(study.study_dir, study.trials, engines[-1], add_runs)

    monkeypatch.setattr(Study, "run", run)
    assert main(compare_arguments(tmp_path, "--tune", "2")) == 0
    assert [engine.num_entered for engine in engines] == [1]
    runs = [method for method, seed in engines[0].order if seed < 1000]
    slow = engines[0].order[0][0].partition(":")[0]
    others = {"none", "plain", "rpr"} - {slow}
    assert {method: runs.count(method) for method in runs} == dict.fromkeys({slow, *others}, 3)
    assert set(runs[:6]) == others


def test_trials_are_evaluated_on_dev_only(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[Any] = []
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("premise,hypothesis,label\na man,a person,entailment\na,b,neutral\n")
    simulated, evaluated = train_function(tmp_path, configs), {}

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        evaluated[config.seed >= tuning.TUNING_SEED_OFFSET] = evaluated_splits(("train", "dev", "test"))
        return simulated(config, run_dir, resume)

    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    assert main([*arguments(model, tmp_path), "--seeds", "2", "--tune", "2"]) == 0
    assert evaluated == {True: ["dev"], False: ["dev", "test"]}


def test_the_value_of_a_trial_is_that_of_dev(tmp_path: Path, compared: list[Any]) -> None:
    """While the trials run, no metric of test is shown."""
    assert main(compare_arguments(tmp_path, "--tune", "2")) == 0
    for status in Study.open(tmp_path / "study").trials.statuses():
        dev, test = accuracy_of(status.run.config)
        assert status.value == pytest.approx(dev if status.run.seed >= 1000 else test, abs=0.01)


def test_chosen_learning_rates_at_the_end_of_the_range_are_named(
    tmp_path: Path, compared: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """On dev, 4e-3 is best: higher than all rates around 1e-4, and lower than all around 1e-1."""
    for rate, adjective in ((1e-4, "highest"), (1e-1, "lowest")):
        out = tmp_path / adjective
        options = ["--tune", "6", "--learning-rate", str(rate), "--out", str(out)]
        assert main([*compare_arguments(tmp_path), *options]) == 0
        chosen = {x.learning_rate for x in compared[-9:]}
        text = f"the chosen learning rate {chosen.pop():g} is the {adjective} that was tried"
        assert " ".join(capsys.readouterr().out.split()).count(text) == 3
        assert not chosen
        assert text in (out / "report.html").read_text()


@pytest.mark.parametrize("num_added", [1, 2, 4])
def test_a_study_interrupted_while_second_trials_are_added_misses_none(
    tmp_path: Path, compared: list[Any], monkeypatch: pytest.MonkeyPatch, num_added: int
) -> None:
    add, added = Trials._add, 0

    def interrupt(self: Trials, run: Any, *args: Any) -> Any:
        nonlocal added
        added += 1
        if added > 9 + num_added:  # 9 first trials
            raise KeyboardInterrupt
        return add(self, run, *args)

    with monkeypatch.context() as context:
        context.setattr(Trials, "_add", interrupt)
        assert main(compare_arguments(tmp_path, "--tune", "8")) == 130
    assert main(["compare", "--resume", "--out", str(tmp_path / "study")]) == 0
    trials = [x for x in compared if x.seed >= 1000]
    assert {model: sum(x.model == model for x in trials) for model in ("none", "plain", "rpr")} == {
        "none": 8,
        "plain": 8,
        "rpr": 8,
    }


def test_second_trials_have_absolute_paths_and_the_options_of_the_method(
    tmp_path: Path, compared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 2}))
    (tmp_path / "words.txt").write_text("good 1 2\nbad 2 1\n")
    methods = ["tiny", "own=--model rpr --vectors words.txt"]
    data = ["--data", "reviews.csv", "--methods", *methods, "--seeds", "2"]
    assert main(["compare", *data, "--out", "study", "--tune", "6"]) == 0
    assert {x.model for x in compared} == {str(tmp_path / "tiny"), "rpr", "none"}
    assert len({x.vectors for x in compared if x.model == "rpr"}) == 1
    assert all(x.vectors is not None for x in compared if x.model == "rpr")


def test_trials_of_a_method_need_the_same_memory(tmp_path: Path, compared: list[Any]) -> None:
    """On a cluster, the first run of a group determines the share of a GPU that the others get."""
    assert main(compare_arguments(tmp_path, "--tune", "6")) == 0
    trials = Study.open(tmp_path / "study").trials
    groups = {trials.group(status.run) for status in trials.statuses()}
    assert groups == {f"reviews.csv, {name}" for name in ("none", "plain", "rpr")}


def test_compare_without_tuning_says_so(
    tmp_path: Path, compared: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments(tmp_path)) == 0
    assert "The methods were not tuned" in " ".join(capsys.readouterr().out.split())
    assert "The methods were not tuned" in (tmp_path / "study" / "report.html").read_text()
    assert not (tmp_path / "study" / "trials.csv").exists()


def test_tuned_comparisons_are_resumed(tmp_path: Path, compared: list[Any]) -> None:
    assert main(compare_arguments(tmp_path, "--tune", "2")) == 0
    before = len(compared)
    assert main(["compare", "--resume", "--seeds", "4", "--out", str(tmp_path / "study")]) == 0
    assert [x.seed for x in compared[before:]] == [3, 3, 3]
    assert main(["compare", "--resume", "--out", str(tmp_path / "study")]) == 0
    assert len(compared) == before + 3
    assert main(["compare", "--resume", "--seeds", "3", "--out", str(tmp_path / "study")]) == 2
    assert main(["compare", "--resume", "--seeds", "1001", "--out", str(tmp_path / "study")]) == 2, "those of trials"


def test_a_choice_is_final(tmp_path: Path, compared: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The report states the settings that were used, even if a trial that was repeated later is better."""
    assert main(compare_arguments(tmp_path, "--tune", "2")) == 0
    used = {x.model: x.learning_rate for x in compared if x.seed == 0}
    for path in (tmp_path / "study" / "runs").rglob("seed-1000/metrics.json"):
        metrics = json.loads(path.read_text())
        metrics["metrics"]["dev"]["accuracy"] = 1 - metrics["metrics"]["dev"]["accuracy"]
        path.write_text(json.dumps(metrics))
    choices = choose_candidates(Study.open(tmp_path / "study"))
    assert {x.tuned.method: f"learning_rate={used[x.tuned.method]:g}" in x.values for x in choices} == {
        "none": used["none"] is not None,
        "plain": used["plain"] is not None,
        "rpr": used["rpr"] is not None,
    }


@pytest.mark.parametrize(("trials", "message"), [("1", "--tune must be at least 2, got 1"), ("x", "--tune: invalid")])
def test_invalid_numbers_of_trials(
    trials: str, message: str, tmp_path: Path, compared: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(compare_arguments(tmp_path, "--tune", trials)) == 2
    assert message in capsys.readouterr().err
    assert compared == []
