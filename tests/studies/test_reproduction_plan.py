"""Runs that reproductions plan: the paper's settings, and which options of the user reach which methods."""

import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.cli.arguments import Parser
from headwise.cli.reproduce import add_arguments, reproduce_options
from headwise.errors import UserError
from headwise.studies.plan import Run
from headwise.studies.reproduction.planning import ReproductionPlan, plan_reproduction
from headwise.studies.reproduction.registry import get_study


def plan(*args: str, seeds: int = 1) -> ReproductionPlan:
    """Plan the runs of a command line."""
    parser = Parser(prog="headwise reproduce")
    add_arguments(parser)
    arguments = parser.parse(args)
    return plan_reproduction(args[0], get_study(args[0]), reproduce_options(arguments), seeds)


def values(plan: ReproductionPlan, option: str) -> dict[str, Any]:
    """Return an option of each method's or candidate's first run."""
    return {run.method: getattr(run.config, option) for run in reversed(plan.runs)}


def second_guides(plan: ReproductionPlan, name: str) -> list[list[tuple[str, ...]]]:
    """Return the guides of the trials of a method that follow the first ones, for each of the first ones."""
    (tuned,) = (tuned for tuned in plan.tuned if tuned.method == name)
    runs = [list(map(Run.from_attributes, trials)) for trials in tuned.second.values()]
    return [sorted(getattr(run.config, "guides", ()) for run in group) for group in runs]


TABLE3 = ("guiding-table3", "--task", "snli=data")


def test_guide_weights_reach_exactly_the_guided_methods() -> None:
    planned = plan(*TABLE3, "--guides", "mdg=0.01", "pdg=0.02")
    assert values(planned, "guides") == {
        "unguided": (),
        "MDG": ("mdg=0.01",),
        "PDG": ("pdg=0.02",),
        "AG": ("mdg=0.01", "pdg=0.02"),
    }
    assert planned.tuned == []


def test_guide_weights_keep_the_layers_of_the_study() -> None:
    planned = plan(
        "guiding-figure3", "--task", "snli=data", "--methods", "AG at layer 7", "--guides", "mdg=0.1", "pdg=1"
    )
    assert values(planned, "guides") == {"unguided": (), "AG at layer 7": ("mdg@6=0.1", "pdg@6=1")}


def test_one_weight_is_given_and_the_other_one_is_tuned() -> None:
    planned = plan(*TABLE3, "--methods", "AG", "--guides", "mdg=auto")
    assert [(tuned.method, tuned.num_trials) for tuned in planned.tuned] == [("unguided", 10), ("AG", 10)]
    first = [guides for method, guides in values(planned, "guides").items() if method.startswith("AG: ")]
    assert first == 3 * [("mdg=auto", "pdg=1e-07")]
    weights = ("0.1", "0.01", "0.001", "0.0001", "1e-05", "1e-06", "1e-07")
    assert second_guides(planned, "AG") == 3 * [sorted(("mdg=auto", f"pdg={x}") for x in weights)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((*TABLE3, "--guides", "next=0.1"), "no method of guiding-table3 has this guide; its guides are mdg, pdg"),
        ((*TABLE3, "--guides", "mdg"), "expected a weight, as in mdg=0.01"),
        ((*TABLE3, "--guides", "mdg@3=0.1"), "guiding-table3 sets the layers"),
        (("da-table4", "--guides", "mdg=0.1"), "no method of da-table4 has this guide; it has no guides"),
        (("da-table4", "--guide-reduction", "paper"), "--guide-reduction: no method of da-table4 has guides"),
        (("da-table4", "--model", "bert-base-uncased"), "the methods of da-table4 are models"),
        ((*TABLE3, "--model", "a", "b"), "is about one model"),
        ((*TABLE3, "--baseline", "none"), "--baseline none: not in guiding-table3"),
        ((*TABLE3, "--over", "learning_rate"), "values are missing"),
        ((*TABLE3, "--over", "lerning_rate", "1"), "--over lerning_rate"),
        (("da-figure4", "--task", "mind=x", "--scheme-options", "mapping=clip"), "methods of da-figure4 set it"),
        (("da-figure5", "--task", "mind=x", "--over", "scheme-options", "a"), "--scheme-options: the methods of"),
        (("rpr-table1", "--data", "x", "--positions", "sinusoidal"), "--positions: the methods of rpr-table1 set it"),
        (("rpr-table2", "--data", "x", "--k", "5"), "--k: the methods of rpr-table2 set it"),
        (("guiding-figure6", "--task", "snli=x", "--rows", "1000"), "--rows: the methods of guiding-figure6 set it"),
    ],
)
def test_options_that_no_method_takes_are_errors(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(*args)


def test_guided_methods_have_the_loss_of_the_paper_and_fresh_seeds() -> None:
    planned = plan(*TABLE3)
    reductions = {(bool(run.config.guides), run.config.guide_reduction) for run in planned.runs}  # type: ignore[attr-defined]
    assert reductions == {(True, "paper"), (False, "mean")}, "without guides, the option has no effect"
    assert {run.seed for run in planned.runs}.isdisjoint({planned.first_seed}), "the study's seeds are fresh"


def test_weights_of_the_paper_and_below_are_tried() -> None:
    weights = ("0.1", "0.01", "0.001", "0.0001")
    planned = plan("guiding-table3", "--task", "snli=data", "--tune", "9")
    for method, tried in {
        "MDG": [(f"mdg={x}",) for x in (*weights, "1e-05", "1e-05")],
        "PDG": [(f"pdg={x}",) for x in (*weights, "1e-05", "1e-06")],  # the first trials have 1e-07
    }.items():
        assert second_guides(planned, method) == 3 * [sorted(tried)], "for each best learning rate"
    pairs = zip((*weights, "0.0001", "1e-05"), ("0.001", "0.0001", "1e-05", "1e-06", "1e-07", "1e-06"), strict=True)
    assert second_guides(planned, "AG") == 3 * [sorted((f"mdg={x}", f"pdg={y}") for x, y in pairs)]
    few = plan("guiding-table3", "--task", "snli=data", "--tune", "8", "--methods", "PDG")
    tried = [(f"pdg={x}",) for x in ("0.01", "0.001", "0.0001", "1e-05", "1e-06")]
    assert second_guides(few, "PDG") == 3 * [sorted(tried)], "the largest weight is left out"
    other = plan("guiding-table2", "--task", "snli=data", "--methods", "[First]", "--tune", "7")
    assert second_guides(other, "[First]") == 3 * [sorted((f"first={x}",) for x in weights)]


def test_every_method_has_the_same_number_of_trials() -> None:
    planned = plan(*TABLE3)
    assert {tuned.method: tuned.num_trials for tuned in planned.tuned} == dict.fromkeys(
        ("unguided", "MDG", "PDG", "AG"), 3 + 16
    )
    rates = []
    for tuned in planned.tuned:
        first = [run.config.learning_rate for run in planned.runs if run.method in tuned.second]
        runs = [list(map(Run.from_attributes, trials)) for trials in tuned.second.values()]
        second = [sorted(str(run.config.learning_rate) for run in group) for group in runs]
        assert (len(first), [len(trials) for trials in second]) == (3, [16, 16, 16])
        rates.append((first, second))
    assert all(x == rates[0] for x in rates), "all methods are tried with the same rates"
    assert {tuned.num_trials for tuned in plan("da-table4", "--task", "sst2=data").tuned} == {8}
    assert {tuned.num_trials for tuned in plan("da-table4", "--task", "sst2=data", "--tune", "5").tuned} == {5}
    assert plan("da-figure4", "--task", "ag-news=data").tuned == [], "the paper tuned nothing"
    with pytest.raises(UserError, match="--tune must be at least 2, got 1"):
        plan("da-table4", "--task", "sst2=data", "--tune", "1")


@pytest.mark.parametrize("reduction", ["mean", "released"])
def test_reduction_and_schedule_of_the_user(reduction: str) -> None:
    planned = plan(
        *TABLE3, "--guides", "mdg=0.1", "pdg=1", "--guide-reduction", reduction, "--guide-schedule", "linear"
    )
    assert values(planned, "guide_reduction") == {"unguided": "mean", **dict.fromkeys(("MDG", "PDG", "AG"), reduction)}
    assert values(planned, "guide_schedule") == {
        "unguided": "constant",
        **dict.fromkeys(("MDG", "PDG", "AG"), "linear"),
    }


def test_classifier_of_equation_7() -> None:
    assert set(values(plan(*TABLE3), "classifier").values()) == {"first-token"}
    assert set(values(plan(*TABLE3, "--classifier", "own"), "classifier").values()) == {"own"}


@pytest.mark.parametrize("table", ["guiding-table1", "guiding-table4"])
def test_models_of_the_user(table: str, tmp_path: Path) -> None:
    (tmp_path / "MiniLM").mkdir()
    models = (str(tmp_path / "MiniLM"), "google/bert_tiny")
    planned = plan(table, "--task", "snli=data", "--model", *models, "--guides", "mdg=0.1", "pdg=1")
    assert values(planned, "model") == {
        "MiniLM": models[0],
        "MiniLM+AG": models[0],
        "google/bert_tiny": models[1],
        "google/bert_tiny+AG": models[1],
    }
    assert planned.controls == {"MiniLM+AG": "MiniLM", "google/bert_tiny+AG": "google/bert_tiny"}


def test_batch_size_of_the_user_replaces_that_of_the_paper() -> None:
    arguments = ("guiding-table4", "--task", "snli=data", "--methods", "ALBERT+AG", "BERT+AG")
    assert set(values(plan(*arguments), "batch_size").values()) == {56, 64}
    assert set(values(plan(*arguments, "--batch-size", "8"), "batch_size").values()) == {8}


def test_training_times_need_no_search() -> None:
    planned = plan("guiding-table4", "--task", "snli=data", "--methods", "BERT+AG")
    assert planned.tuned == []
    assert values(planned, "guides") == {"BERT": (), "BERT+AG": ("mdg=0.001", "pdg=0.001")}


def test_baseline_of_the_user_replaces_the_controls() -> None:
    planned = plan("da-table4", "--task", "sst2=data", "--methods", "distance-aware", "--baseline", "transformer-xl")
    assert {run.method for run in planned.runs} == {"distance-aware", "transformer-xl"}
    assert (planned.baseline, planned.controls) == ("transformer-xl", {})


PLAIN_ADAM = {"warmup_steps": 0.0, "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 0.0}


@pytest.mark.parametrize(
    ("name", "task"), [("da-table4", "sst2=x"), ("guiding-table2", "snli=x"), ("da-table5", "mind=x")]
)
def test_reproductions_use_plain_adam(name: str, task: str) -> None:
    run = plan(name, "--task", task).runs[0]
    assert {option: getattr(run.config, option) for option in PLAIN_ADAM} == PLAIN_ADAM


def test_optimizer_settings_of_the_user_take_precedence_also_if_they_are_the_defaults_of_train() -> None:
    options = ("--lr-scheduler-type", "linear", "--warmup-steps", "0.1", "--max-grad-norm", "1")
    config: Any = plan("da-table4", "--task", "sst2=data", *options).runs[0].config
    assert (config.lr_scheduler_type, config.warmup_steps, config.max_grad_norm) == ("linear", 0.1, 1.0)


def test_over_tunes_every_method_with_the_same_number_of_candidates() -> None:
    planned = plan("da-table4", "--task", "sst2=data", "--methods", "rpr", "--over", "learning_rate", "1e-3", "1e-4")
    assert {tuned.method: tuned.num_trials for tuned in planned.tuned} == {"none": 2, "rpr": 2}
    assert {run.config.learning_rate for run in planned.runs} == {1e-3, 1e-4}
    assert {run.config.scheme_learning_rate for run in planned.runs} == {None}, "nothing else is tuned"


def test_over_gives_methods_with_fewer_combinations_more_seeds() -> None:
    rates = ("--over", "learning_rate", "1e-3", "3e-4", "1e-4")
    planned = plan("da-table4", "--task", "sst2=data", "--methods", "plain", *rates)
    runs = {name: [x for x in planned.runs if x.method.startswith(f"{name}: ")] for name in ("none", "plain")}
    assert {name: len(x) for name, x in runs.items()} == {"none": 12, "plain": 12}
    assert {run.seed for run in runs["plain"]} == {1000}
    assert sorted({run.seed for run in runs["none"]}) == [1000, 1001, 1002, 1003]


@pytest.mark.parametrize("sizes", [(), ("small",)])
def test_two_language_pairs_in_one_study(sizes: tuple[str, ...], tmp_path: Path) -> None:
    planned = plan("rpr-table1", "--data", str(tmp_path), *(["--model", *sizes] if sizes else []))
    languages = {run.task: (run.config.source, run.config.target) for run in planned.runs}  # type: ignore[attr-defined]
    assert languages == {"en-de": ("en", "de"), "en-fr": ("en", "fr")}
    assert {run.config.task for run in planned.runs} == {"translation"}
    assert {run.config.data for run in planned.runs} == {(str(tmp_path),)}
    for size in sizes or ("base", "big"):
        runs = {run.method: run.config for run in planned.runs if run.task == "en-fr" and run.config.model == size}
        both: Any = runs[f"{size} relative and absolute"]
        assert (both.scheme, both.positions) == ("rpr", "sinusoidal")
        assert planned.controls[f"{size} relative and absolute"] == f"{size} absolute"


def test_language_pairs_with_data_of_their_own() -> None:
    planned = plan("rpr-table1", "--task", "en-de=wmt", "--task", "en-fr=other")
    assert {run.task: run.config.data for run in planned.runs} == {"en-de": ("wmt",), "en-fr": ("other",)}


@pytest.mark.parametrize(("method", "package"), [("[Dependency]", "spacy"), ("[WordSim]", "nltk.corpus")])
def test_guides_whose_packages_are_missing(
    method: str, package: str, study_log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    planned = plan("guiding-table2", "--task", "snli=data", "--guides", "mdg=1", "pdg=1")
    assert method not in {run.method.partition(": ")[0] for run in planned.runs}
    assert any(f"skipped {method}" in line and "headwise[knowledge]" in line for line in study_log)
    with pytest.raises(UserError, match="headwise\\[knowledge\\]"):
        plan("guiding-table2", "--task", "snli=data", "--methods", method)
