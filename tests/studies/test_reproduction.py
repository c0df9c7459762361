"""Reproductions of the papers' tables and figures."""

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from headwise.cli import main
from headwise.errors import UserError
from headwise.models import HeadwiseConfig
from headwise.studies.analysis import analyze
from headwise.studies.papers import load_published_tables
from headwise.studies.plan import Result
from headwise.studies.reproduction import planning
from headwise.studies.reproduction.charts import draw_line_chart, name_figures
from headwise.studies.reproduction.paper_comparison import compare_with_paper, describe_missing
from headwise.studies.reproduction.planning import ReproduceOptions, plan_reproduction
from headwise.studies.reproduction.registry import DIRECT_OUTPUTS, STUDIES, get_study
from headwise.studies.reproduction.significance import build_best_tables
from headwise.studies.scheduler import Scheduler
from headwise.studies.study import Study
from headwise.training.core.config import parse_scheme_options
from tests.studies.conftest import create_study, states
from tests.studies.fakes import work
from tests.studies.simulated import classification_run

STUDY_NAMES = [
    *(f"da-table{n}" for n in (3, 4, 5)),
    *(f"da-figure{n}" for n in (3, 4, 5, 6, 7, 8)),
    "da-footnote7",
    *(f"rpr-table{n}" for n in (1, 2, 3)),
    *(f"guiding-table{n}" for n in (1, 2, 3, 4)),
    *(f"guiding-figure{n}" for n in (3, 4, 5, 6)),
]
DIRECT_NAMES = ["da-table1", "da-table2", "da-figure1", "da-figure2"]


def write_sst2(directory: Path) -> Path:
    """Write a small data set in the layout of SST-2."""
    directory.mkdir()
    for split in ("train", "dev", "test"):
        (directory / f"{split}.csv").write_text("text,label\n" + 10 * "good film,1\nbad film,0\n")
    return directory


def options(methods: Sequence[str] = (), **overrides: Any) -> ReproduceOptions:
    return ReproduceOptions({}, methods, overrides)


def test_all_tables_and_figures_are_registered() -> None:
    assert sorted(STUDIES) == sorted(STUDY_NAMES)
    assert sorted(DIRECT_OUTPUTS) == sorted(DIRECT_NAMES)
    assert sorted(load_published_tables()) == sorted([*STUDY_NAMES, *DIRECT_NAMES])


@pytest.mark.parametrize("name", STUDY_NAMES)
def test_studies_match_published_tables(name: str) -> None:
    spec, published = STUDIES[name], load_published_tables()[name]
    assert spec.baseline in spec.methods
    assert {*spec.controls, *spec.controls.values()} <= spec.methods.keys()
    assert spec.chart is None or spec.chart.points.keys() == spec.methods.keys()
    for task, values in published.values.items():
        assert task in spec.tasks
        assert values.keys() <= spec.methods.keys()
        for metrics in values.values():
            for metric, value in metrics.items():
                assert value.mean > 0
                assert metric == "seconds per epoch" or value.mean < 100
    if name.startswith("da") and len(spec.methods) > 2:
        assert any(overrides.get("model") == "none" for overrides in spec.methods.values()), "a control without scheme"


def test_published_values() -> None:
    """Some values of each paper, copied from the papers a second time."""
    values = {name: published.values for name, published in load_published_tables().items()}
    assert values["da-table3"]["amazon-electronics"]["distance-aware"]["macro_f1"].mean == 44.29
    assert values["da-table4"]["snli"]["transformer-xl"]["accuracy"].std == 0.29
    assert values["da-table5"]["mind"]["rpr"]["ndcg@10"].mean == 41.65
    assert values["rpr-table1"]["en-fr"]["big absolute"]["bleu"].mean == 41.2
    assert values["rpr-table3"]["en-de"]["values"]["bleu"].mean == 25.3
    assert values["guiding-table1"]["cross-genre-ir"]["SciBERT+AG"]["r@3"].mean == 88.07
    assert values["guiding-table2"]["mednli"]["[PMI]"]["precision"].mean == 77.60
    assert values["guiding-table3"]["mednli"]["MDG"]["accuracy"].mean == 82.98
    assert values["guiding-table4"]["mednli"]["BlueBERT+AG"]["seconds per epoch"].mean == 102
    assert values["guiding-figure3"]["mednli"]["MDG at layer 7"]["accuracy"].mean == 77.36
    assert values["guiding-figure6"]["mednli"]["PDG, 20%"]["accuracy"].mean == 69.48


@pytest.mark.parametrize(
    "name", [name for name in STUDY_NAMES if not name.startswith("rpr") and name not in ("da-table5", "da-figure7")]
)
def test_text_studies_can_be_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "why_unavailable", lambda guides: "")  # spaCy and WordNet need not be installed
    spec = STUDIES[name]
    tasks = dict.fromkeys(task for task in spec.tasks if task != "mind")
    plan = plan_reproduction(name, spec, ReproduceOptions(tasks, (), {"epochs": 3.0}), 2)
    num_trials = sum(tuned.num_trials for tuned in plan.tuned)
    assert len(plan.runs) == len({run.key for run in plan.runs})
    assert plan.num_runs == num_trials + len(tasks) * len(spec.methods) * 2
    assert {run.config.epochs for run in plan.runs} == {3.0}, "the user's options take precedence"


@pytest.mark.parametrize("name", ["da-figure4", "da-figure5"])
def test_distance_variants_are_valid_models(name: str) -> None:
    for overrides in STUDIES[name].methods.values():
        parsed_options = parse_scheme_options(overrides.get("scheme_options", ()))
        HeadwiseConfig(scheme=overrides["model"], scheme_options=parsed_options)


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("da-table4", "rpr", {"none", "rpr"}),
        ("guiding-table1", "SciBERT+AG", {"SciBERT", "SciBERT+AG"}),
        ("guiding-figure6", "MDG, 40%", {"unguided, 40%", "MDG, 40%"}),
    ],
)
def test_selected_methods_are_run_with_their_controls(name: str, method: str, expected: set[str]) -> None:
    spec = get_study(name)
    task = next(iter(spec.tasks))
    plan = plan_reproduction(name, spec, ReproduceOptions({task: None}, [method], {}), 1)
    assert {run.method.partition(": ")[0] for run in plan.runs} == expected


def test_layers_that_the_model_lacks_are_skipped(tmp_path: Path, study_log: list[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    model = ReproduceOptions({}, (), {}, models=[str(tmp_path)])
    plan = plan_reproduction("guiding-figure3", get_study("guiding-figure3"), model, 1)
    assert len(plan.tuned) == 1 + 3 * 6
    assert "skipped MDG at layer 7: the model has 6 layers" in study_log


def test_unknown_studies_and_methods() -> None:
    with pytest.raises(UserError, match="no table or figure 'da-table9'"):
        get_study("da-table9")
    with pytest.raises(UserError, match="not in da-table4; expected one of none, plain"):
        plan_reproduction("da-table4", get_study("da-table4"), options(["alibi"]), 1)


def test_reported_and_own_values(tmp_path: Path) -> None:
    results = [
        classification_run(tmp_path, "plain", seed, np.arange(100) < num_correct)
        for seed, num_correct in enumerate((80, 84))
    ]
    (table,) = compare_with_paper(results, load_published_tables()["da-table4"])
    assert table.rows[0] == ("plain", "accuracy", "89.67 ± 0.22", "82.00 ± 2.83", "−7.67")
    assert table.rows[-1] == ("distance-aware", "macro_f1", "90.43 ± 0.19", "", "")


def test_results_without_values_of_the_paper_are_named(tmp_path: Path) -> None:
    tables = load_published_tables()
    results = [Result("en-de", f"small {x}", 0, tmp_path, {}) for x in ("none", "relative")]
    assert not compare_with_paper(results, tables["rpr-table1"])
    (line,) = describe_missing(results, tables["rpr-table1"])
    assert "has no values of small none, small relative on en-de, only of base absolute" in line
    results = [Result(task, "AG", 0, tmp_path, {}) for task in ("snli", "multinli", "healthver")]
    (line,) = describe_missing(results, tables["guiding-table3"])
    assert "has no values on snli, healthver, only on multinli, mednli, cross-genre-ir." in line
    assert not describe_missing(results, tables["guiding-figure4"]), "the paper has no numbers for this figure"


def test_best_method_against_the_second_best(tmp_path: Path) -> None:
    """The paper's test is scipy's for two samples. The control is not one of the paper's methods."""
    num_correct = {"none": (95, 95, 95), "plain": (80, 82, 84), "rpr": (84, 87, 88), "tener": (70, 71, 72)}
    results = [
        classification_run(tmp_path, name, seed, np.arange(100) < count)
        for name, counts in num_correct.items()
        for seed, count in enumerate(counts)
    ]
    (table,) = build_best_tables(analyze(results, "none"), load_published_tables()["da-table4"])
    ((best, second, difference, p, paired_p, seeds),) = table.rows
    assert (best, second, seeds) == ("rpr", "plain", "3 and 3")
    assert difference.startswith("+4.33 [")
    assert float(p) == pytest.approx(stats.ttest_ind(num_correct["rpr"], num_correct["plain"]).pvalue, rel=0.05)
    assert float(paired_p) == pytest.approx(stats.ttest_rel(num_correct["rpr"], num_correct["plain"]).pvalue, rel=0.05)


def test_the_control_is_no_best_method_of_figures_without_values(tmp_path: Path) -> None:
    num_correct = {"learnable-sigmoid": 80, "none": 95, "clip": 85}
    results = [classification_run(tmp_path, x, 0, np.arange(100) < count) for x, count in num_correct.items()]
    (table,) = build_best_tables(analyze(results, "learnable-sigmoid"), load_published_tables()["da-figure4"])
    assert table.rows[0][:2] == ("clip", "learnable-sigmoid")


def test_a_comparison_is_no_reproduction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = create_study(tmp_path / "study", seeds=1)
    claimed = Scheduler(study.trials).claim()
    assert claimed is not None
    study.trials.fail(claimed, "out of luck")
    assert main(["reproduce", "--resume", "--out", str(tmp_path / "study")]) == 2
    assert "contains a study of the kind compare, expected a table or figure" in capsys.readouterr().err
    assert "failed" in states(study), "the study did not change"


def test_seconds_per_epoch(tmp_path: Path) -> None:
    result = Result("mednli", "BERT", 0, tmp_path, {"train_seconds": 15.0, "epochs": 3.0})
    (table,) = compare_with_paper([result, replace(result, seed=1)], load_published_tables()["guiding-table4"])
    assert table.rows[0] == ("BERT", "seconds per epoch", "95.00", "5.00 ± 0.00", "−90.00")


def test_seconds_of_own_models(tmp_path: Path) -> None:
    """Of models and tasks that are not in the paper, too, each with its own unguided model."""
    seconds = {"mine": [8.0, 12.0], "other": [4.0], "mine+AG": [12.0, 13.0], "other+AG": [5.0]}
    results = [
        Result("snli", method, seed, tmp_path, {"train_seconds": value, "epochs": 2.0})
        for method, values in seconds.items()
        for seed, value in enumerate(values)
    ]
    build_tables = STUDIES["guiding-table4"].build_tables
    assert build_tables is not None
    (table,) = build_tables(results)
    assert table.rows == (("mine", "5.00", "6.25", "+1.25", "1.25×"), ("other", "2.00", "2.50", "+0.50", "1.25×"))


def test_line_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.inspection.style.Figure", Figure)  # not a blank one
    num_correct = {"unguided": 80, "MDG at layer 1": 82, "MDG at layer 2": 84, "PDG at layer 2": 86}
    results = [classification_run(tmp_path, name, 0, np.arange(100) < count) for name, count in num_correct.items()]
    chart = STUDIES["guiding-figure3"].chart
    assert chart is not None
    figure, _ = draw_line_chart(analyze(results, "unguided").tasks[0], chart)
    lines = [np.asarray(line.get_xydata()).tolist() for line in figure.axes[0].get_lines()]
    assert lines == [[[1, 80], [2, 80]], [[1, 82], [2, 84]], [[2, 86]]], "up to the last guided layer"


def test_reproduce_from_command_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    difficulty = random.random(300)
    accuracies = {"none": 0.8, "rpr": 0.9}

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        is_correct = difficulty < accuracies[config.model] + random.normal(0, 0.01)
        result = classification_run(tmp_path / "simulated", config.model, config.seed, is_correct, config.task)
        shutil.copytree(result.run_dir, run_dir, dirs_exist_ok=True)
        (run_dir / "metrics.json").write_text(json.dumps(result.metrics))
        return result.metrics

    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    out = tmp_path / "study"
    data = write_sst2(tmp_path / "sst2")
    arguments = ["--task", f"sst2={data}", "--methods", "rpr", "--seeds", "6", "--margin", "2.5", "--out", str(out)]
    assert main(["reproduce", "da-table4", *arguments]) == 0
    rows = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [row["margin"] for row in rows if row["method"] == "rpr"] == ["2.5"]
    output = " ".join(capsys.readouterr().out.split())
    assert "rpr is better than none by" in output
    assert "89.94 ± 0.19" in output
    assert "Its conclusion: distance-aware is best on both datasets" in output
    assert "89.94 ± 0.19" in (out / "report.html").read_text()
    assert "89.94 ± 0.19" in (out / "table.md").read_text()
    assert not (out / "figures").exists(), "a table has no figures"
    for options, message in {
        ("--epochs", "3", "--methods", "rpr"): "leave out --methods, --epochs",
        ("--tune", "3"): "leave out --tune",
    }.items():
        assert main(["reproduce", "--resume", *options, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
    assert main(["reproduce", "da-table3", "--resume", "--out", str(out)]) == 2
    assert "contains da-table4, not da-table3" in capsys.readouterr().err
    assert main(["reproduce", "da-table4", "--resume", "--out", str(out)]) == 0


def test_a_study_of_one_method_from_command_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is compared in da-figure6, da-figure7 and da-footnote7, so that they have no power."""

    def train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        result = classification_run(tmp_path / "simulated", config.model, config.seed, np.arange(100) < 80, config.task)
        shutil.copytree(result.run_dir, run_dir, dirs_exist_ok=True)
        (run_dir / "metrics.json").write_text(json.dumps(result.metrics))
        return result.metrics

    monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train, add_runs))
    spec = replace(STUDIES["da-footnote7"], build_tables=None)  # which reads trained models
    monkeypatch.setitem(STUDIES, "da-footnote7", spec)
    data = write_sst2(tmp_path / "sst2")
    arguments = ["--task", f"sst2={data}", "--seeds", "2", "--out", str(tmp_path / "study")]
    assert main(["reproduce", "da-footnote7", *arguments]) == 0
    assert "80.00 ± 0.00" in capsys.readouterr().out


@pytest.mark.parametrize("command", [("reproduce", "da-table4"), ("compare", "--methods", "rpr"), ("sweep",)])
def test_data_that_cannot_be_read_is_one_line_before_the_first_run(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "study"
    data.mkdir()
    (data / "notes.txt").write_text("nothing")
    options = ("--over", "layers", "1", "2") if command[0] == "sweep" else ()
    assert main([*command, "--task", f"sst2={data}", *options, "--out", str(out)]) == 2
    assert f"headwise: error: {data}" in capsys.readouterr().err
    assert not out.exists()


def test_figures_of_several_tasks_are_named_after_them() -> None:
    figures = [(Figure(), "ag-news: one point per seed."), (Figure(), "mind, clicked news: means")]
    names = [name for name, _ in name_figures("da-figure5", figures)]
    assert names == ["da-figure5-ag-news", "da-figure5-mind-clicked-news"]
    assert [name for name, _ in name_figures("da-figure5", figures[:1])] == ["da-figure5"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "headwise reproduce --list"),
        (["da-table9", "--out", "x"], "no table or figure 'da-table9'"),
        (["da-tabel4", "--out", "x"], "no table or figure 'da-tabel4'; did you mean da-table4?"),
        (
            ["guiding-table3", "--task", "snli", "--model", "./no", "--out", "x"],
            "error: --model ./no: no such directory",
        ),
        (["guiding-table3", "--task", "snli", "--model", "rpr", "--out", "x"], "--model rpr: expected a Hugging Face"),
        (["da-figure1", "--epochs", "3", "--out", "x"], "da-figure1 needs no training"),
        (["da-figure1", "--margin", "2", "--out", "x"], "da-figure1 needs no training"),
        (["da-figure1", "--task", "sst2=data", "--out", "x"], "da-figure1 needs no data"),
        (["da-table4", "--margin", "0", "--out", "x"], "--margin: must be a positive number, not '0'"),
        (["da-table2", "--out", "x"], "da-table2 needs one click log: --task mind=PATH"),
        (["da-table4", "--data", "x", "--out", "x"], "--task sst2=PATH --task snli=PATH"),
        (["da-table4"], "--out"),
    ],
)
def test_user_errors(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *args]) == 2
    assert message in capsys.readouterr().err


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in [*STUDY_NAMES, *DIRECT_NAMES])
