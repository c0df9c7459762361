"""Sweeps: selection on dev, and the printed result."""

import json
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.studies import sweep
from headwise.studies.search_space import Dimension, parse_search_space
from headwise.studies.worker import train_run
from headwise.studies.worker_pool import Resources
from headwise.training import TextConfig
from headwise.training.core.config import RunConfig
from tests.studies.fakes import fake_train, work
from tests.training.conftest import Headwise, rows, write

RPR = TextConfig(data=("reviews.csv",), model="rpr")


def train_by_heads(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
    """Write a run. On dev two heads are best, on test eight."""
    assert isinstance(config, TextConfig)
    dev, test = {2: 0.9}.get(config.heads, 0.5) + config.seed / 100, {8: 0.99}.get(config.heads, 0.6)
    metrics = fake_train(config, run_dir) | {"metrics": {"dev": {"accuracy": dev}, "test": {"accuracy": test}}}
    (run_dir / "metrics.json").write_text(json.dumps(metrics))
    return metrics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "tpe"}, "--trials N is required"),
        ({"trials": 3}, "--trials is for the samplers"),
        ({"sampler": "tpe", "trials": 3, "seeds": 2}, "a sampler tries each candidate with one seed"),
        ({"sampler": "tpe", "trials": 0}, "--trials must be at least 1, got 0"),
        ({"seeds": 0}, "--seeds must be at least 1, got 0"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    search_space = parse_search_space(RPR, [("heads", "1", "2")])
    with pytest.raises(UserError, match=message):
        sweep.create_sweep(RPR, search_space, tmp_path / "sweep", **options)
    assert not (tmp_path / "sweep").exists()


def test_sampler_needs_two_values(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least two values"):
        sweep.create_sweep(RPR, [Dimension("heads", (1,))], tmp_path / "sweep", sampler="tpe", trials=3)
    assert not (tmp_path / "sweep").exists()


def test_best_on_dev_is_evaluated_on_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = sweep.create_sweep(RPR, parse_search_space(RPR, [("heads", "2", "4", "8")]), tmp_path / "sweep")
    work(study, train_by_heads)
    assert sweep.run_sweep(study, Resources(1))
    output = capsys.readouterr().out
    assert "Best on dev: heads=2." in output
    assert "heads=2: test accuracy 0.6000 (1 seed)" in output
    assert "unchanged: test accuracy 0.6000 (1 seed)" in output
    assert "0.99" not in output, "test metrics of other candidates are not shown"
    assert (tmp_path / "sweep" / "sweep.csv").read_text().splitlines()[:2] == [
        "candidate,dev_mean,dev_std,seeds",
        "heads=2,0.9,0.0,1",
    ]


def test_control_is_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = TextConfig(data=("reviews.csv",), model="rpr", heads=2)
    study = sweep.create_sweep(base, parse_search_space(base, [("heads", "4", "8")]), tmp_path / "sweep", seeds=2)
    work(study, train_by_heads)
    assert sweep.run_sweep(study, Resources(1))
    assert "Best on dev: unchanged. No other candidate is better than this control." in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_sweep_says_that_the_best_looks_better_than_it_is(
    seeds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = sweep.create_sweep(RPR, parse_search_space(RPR, [("heads", "2", "4")]), tmp_path / "sweep", seeds=seeds)
    work(study, train_by_heads)
    sweep.run_sweep(study, Resources(1))
    output = " ".join(capsys.readouterr().out.split())
    assert "The best of many candidates looks better than it is; run headwise compare with new seeds" in output


def test_failed_runs_are_logged_with_the_command_to_retry(tmp_path: Path, study_log: list[str]) -> None:
    base = TextConfig(data=(str(tmp_path / "lost.csv"),), model="rpr")
    study = sweep.create_sweep(base, parse_search_space(base, [("heads", "1", "2")]), tmp_path / "my sweep")
    work(study, train_run)
    assert not sweep.run_sweep(study, Resources(1))
    assert any("lost.csv: no such file" in message for message in study_log)
    assert study_log[-1] == f"to retry: headwise sweep --resume --out '{tmp_path / 'my sweep'}'"


def test_arguments_of_the_command_line(tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}

    def create_sweep(base: Any, search_space: Any, out_dir: Path, **options: Any) -> None:
        arguments.update(base=base, search_space=search_space, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "create_sweep", create_sweep)
    monkeypatch.chdir(tmp_path)
    write(Path("a.csv"), ("text", "label"), list(rows(20)))
    options = ("--data", "a.csv", "--model", "bert", "--guides", "mdg", "--seeds", 3, "--out", "sweep")
    over = ("--over", "learning_rate", "1e-3", "1e-4", "--over", "mdg", "0.5", "0.25")
    assert headwise("sweep", *options, *over)[0] == 130
    assert arguments["search_space"] == (
        Dimension("mdg", (0.5, 0.25), True),
        Dimension("learning_rate", (0.001, 0.0001)),
    )
    assert (arguments["base"].model, arguments["seeds"]) == ("bert", 3)
    assert (arguments["sampler"], arguments["trials"]) == ("grid", None)


def test_compare_does_not_resume_a_sweep(tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "sweep"
    sweep.create_sweep(RPR, parse_search_space(RPR, [("heads", "2", "4")]), out)
    code, _, errors = headwise("compare", "--resume", "--out", out)
    assert code == 2
    assert f"--resume: {out} contains a study of the kind sweep, expected compare" in errors
