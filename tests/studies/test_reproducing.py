"""The papers' studies: all are declared, fit their figures, and end beside them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.models import HeadwiseConfig
from headwise.studies.analysis import analyze
from headwise.studies.papers import published
from headwise.studies.reproduction.paper_comparison import beside
from headwise.studies.reproduction.registry import PICTURES, STUDIES, get_study
from headwise.studies.reproduction.reproduce import ReproduceOptions, picture, plan
from headwise.studies.study import Study
from headwise.studies.worker import work
from headwise.training.text.model import parse_scheme_options
from tests.studies.simulated import classified

TABLES = [
    *(f"da-{x}" for x in ("table3", "table4", "table5", "figure3", "figure4", "figure5")),
    *(f"rpr-table{n}" for n in (1, 2, 3)),
    *(f"guiding-{x}" for x in ("table1", "table2", "table3", "table4", "figure3", "figure6")),
]
PICTURED = [*(f"da-figure{n}" for n in (1, 2, 6, 7, 8)), "guiding-figure4", "guiding-figure5"]


def asked(methods: Sequence[str] = (), **settings: Any) -> ReproduceOptions:
    return ReproduceOptions({}, methods, settings)


def test_every_table_and_figure_is_there() -> None:
    assert sorted(STUDIES) == sorted(published()) == sorted(TABLES)
    assert sorted(PICTURES) == sorted(PICTURED)


@pytest.mark.parametrize("name", TABLES)
def test_figures_and_studies_fit_each_other(name: str) -> None:
    declared, paper = STUDIES[name], published()[name]
    methods = declared.methods.keys() | declared.missing.keys()
    assert declared.baseline in declared.methods
    assert {*declared.controls, *declared.controls.values()} <= declared.methods.keys()
    assert declared.axis is None or declared.axis.places.keys() == declared.methods.keys()
    for task, figures in paper.figures.items():
        assert task in declared.tasks
        assert figures.keys() <= methods
        for metrics in figures.values():
            for metric, figure in metrics.items():
                assert figure.mean > 0
                assert metric == "seconds an epoch" or figure.mean < 100
    controls = [settings for settings in declared.methods.values() if settings.get("model") == "none"]
    if name.startswith("da"):
        assert controls, "a study of schemes has the control without positions"


def test_figures_are_the_papers() -> None:
    """Some of each paper, read again from the papers."""
    found = {name: paper.figures for name, paper in published().items()}
    assert (found["da-table3"]["amazon-electronics"]["distance-aware"]["macro_f1"].mean) == 44.29
    assert (found["da-table4"]["snli"]["transformer-xl"]["accuracy"].std) == 0.29
    assert (found["da-table5"]["mind"]["rpr"]["ndcg@10"].mean) == 41.65
    assert (found["rpr-table1"]["translation"]["en-fr big absolute"]["bleu"].mean) == 41.2
    assert (found["rpr-table3"]["translation"]["values"]["bleu"].mean) == 25.3
    assert (found["guiding-table1"]["cross-genre-ir"]["SciBERT+AG"]["r@3"].mean) == 88.07
    assert (found["guiding-table2"]["mednli"]["[PMI]"]["precision"].mean) == 77.60
    assert (found["guiding-table3"]["mednli"]["MDG"]["accuracy"].mean) == 82.98
    assert (found["guiding-table4"]["mednli"]["BlueBERT+AG"]["seconds an epoch"].mean) == 102
    assert (found["guiding-figure3"]["mednli"]["MDG at layer 7"]["accuracy"].mean) == 77.36
    assert (found["guiding-figure6"]["mednli"]["PDG, 20%"]["accuracy"].mean) == 69.48


TEXTS = [name for name in TABLES if not name.startswith("rpr") and name != "da-table5"]


@pytest.mark.parametrize("name", TEXTS)
def test_studies_of_texts_can_be_planned(name: str) -> None:
    declared = STUDIES[name]
    tasks = dict.fromkeys(task for task in declared.tasks if task != "mind")
    planned = plan(name, declared, ReproduceOptions(tasks, (), {"epochs": 3.0}), 2)
    assert len(planned) == len(tasks) * len(declared.methods) * 2
    assert {run.settings.epochs for run in planned} == {3.0}, "what the user says wins"
    assert {(run.task, run.method, run.seed) for run in planned} == {run.key for run in planned}


@pytest.mark.parametrize("name", ["da-figure4", "da-figure5"])
def test_variants_of_distance_are_models(name: str) -> None:
    for settings in STUDIES[name].methods.values():
        options = parse_scheme_options(settings.get("scheme_options", ()))
        HeadwiseConfig(scheme=settings["model"], scheme_options=options)


def test_some_methods_come_with_what_they_are_compared_with() -> None:
    def methods(name: str, *wanted: str) -> set[str]:
        task = next(iter(get_study(name).tasks))
        return {run.method for run in plan(name, get_study(name), ReproduceOptions({task: None}, wanted, {}), 1)}

    assert methods("da-table4", "rpr") == {"none", "rpr"}
    assert methods("guiding-table1", "SciBERT+AG") == {"SciBERT", "SciBERT+AG"}
    assert methods("guiding-figure6", "MDG, 40%") == {"unguided, 40%", "MDG, 40%"}


def test_a_small_model_has_fewer_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    planned = plan("guiding-figure3", get_study("guiding-figure3"), asked(model=str(tmp_path)), 1)
    assert len(planned) == 1 + 3 * 6
    assert "left out: MDG at layer 7: the model has 6 layers" in capsys.readouterr().err


def test_mistakes() -> None:
    with pytest.raises(UserError, match="headwise inspect"):
        get_study("da-figure8")
    with pytest.raises(UserError, match="no table or figure 'da-table9'"):
        get_study("da-table9")
    with pytest.raises(UserError, match="not in da-table4; there: none, plain"):
        plan("da-table4", get_study("da-table4"), asked(["alibi"]), 1)
    with pytest.raises(UserError, match="parses no sentences"):
        plan("guiding-table2", get_study("guiding-table2"), asked(["[Dependency]"]), 1)


def test_the_papers_figure_stands_beside_ours(tmp_path: Path) -> None:
    runs = [classified(tmp_path, "plain", seed, np.arange(100) < right) for seed, right in enumerate((80, 84))]
    (grid,) = beside(runs, published()["da-table4"])
    assert grid.rows[0] == ("plain", "accuracy", "89.67 ± 0.22", "82.00 ± 2.83", "−7.67")
    assert grid.rows[-1] == ("distance-aware", "macro_f1", "90.43 ± 0.19", "", "")
    (cost,) = beside([replaced(run, task="mednli", method="BERT") for run in runs], published()["guiding-table4"])
    assert cost.rows[0] == ("BERT", "seconds an epoch", "95.00", "5.00 ± 0.00", "−90.00")


def replaced(run: Any, **known: str) -> Any:
    return type(run)(**{**vars(run), **known, "metrics": {**run.metrics, "seconds": 15.0, "epochs": 3.0}})


def test_a_figure_of_lines_is_drawn_as_one(tmp_path: Path) -> None:
    methods = {"unguided": 80, "MDG at layer 1": 82, "MDG at layer 2": 84, "PDG at layer 2": 86}
    runs = [classified(tmp_path, name, 0, np.arange(100) < right) for name, right in methods.items()]
    axis = STUDIES["guiding-figure3"].axis
    assert axis is not None
    drawn, _ = picture(analyze(runs, "unguided").tasks[0], axis)
    lines = [np.asarray(line.get_xydata()).tolist() for line in drawn.axes[0].get_lines()]
    assert lines == [[[1, 80], [12, 80]], [[1, 82], [2, 84]], [[2, 86]]]


def test_from_the_command_to_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    hard = draw.random(300)
    accuracy = {"none": 0.8, "rpr": 0.9}  # of each model

    def train(settings: Any, out: Path, resume: bool) -> dict[str, Any]:
        right = hard < accuracy[settings.model] + draw.normal(0, 0.01)
        made = classified(tmp_path / "made", settings.model, settings.seed, right, settings.task)
        shutil.copytree(made.folder, out, dirs_exist_ok=True)
        (out / "metrics.json").write_text(json.dumps(made.metrics))
        return made.metrics

    monkeypatch.setattr(Study, "conduct", lambda self, machine: work(self.ledger, self.folder, train, poll=0.01))
    out = tmp_path / "study"
    assert (
        main(["reproduce", "da-table4", "--task", "sst2", "--methods", "rpr", "--seeds", "6", "--out", str(out)]) == 0
    )
    told = capsys.readouterr().out
    assert "rpr beats none by" in told
    assert "89.94 ± 0.19" in told
    assert "It says: distance-aware is best on both sets" in told
    assert "89.94 ± 0.19" in (out / "report.html").read_text()
    assert "89.94 ± 0.19" in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "which table or figure? headwise reproduce --list names them"),
        (["da-table9", "--out", "x"], "no table or figure 'da-table9'"),
        (["da-figure1", "--out", "x"], "headwise inspect"),
        (["da-table4", "--data", "x", "--out", "x"], "--task sst2=PATH --task snli=PATH"),
        (["da-table4"], "--out FOLDER is missing"),
    ],
)
def test_mistakes_on_the_command_line(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *args]) == 2
    assert told in capsys.readouterr().err


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in [*TABLES, *PICTURED])
