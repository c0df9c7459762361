"""Sweeps: what is tried, what is chosen, and what is told about it."""

from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.studies import sweep
from headwise.studies.search import Search
from headwise.studies.search_space import WEIGHTS, Axis, grid, parse_search_space
from headwise.studies.worker import train_run, work
from headwise.studies.worker_pool import Resources
from headwise.training import TextConfig
from headwise.training.core.config import RunConfig
from tests.studies.fakes import fake
from tests.training.conftest import Headwise

GUIDED = TextConfig(data=("reviews.csv",), model="bert", guides=("mdg", "pdg"))
OWN = TextConfig(data=("reviews.csv",), model="rpr")


def test_the_papers_grid_and_the_unguided_model() -> None:
    tried, controls = grid(parse_search_space(GUIDED, ()), GUIDED)
    assert len(tried) == 16
    assert {one.settings["guides"] for one in tried} == {(f"mdg={a:g}", f"pdg={b:g}") for a in WEIGHTS for b in WEIGHTS}
    assert [one.name for one in controls] == ["unchanged"]
    assert controls[0].settings == {"guides": ()}


def test_a_grid_of_settings() -> None:
    axes = parse_search_space(OWN, [("learning_rate", "1e-3", "1e-4"), ("--head-dim", "8", "16")])
    assert axes == (Axis("learning_rate", (0.001, 0.0001)), Axis("head_dim", (8, 16)))
    tried, controls = grid(axes, OWN)
    assert [one.name for one in tried][:2] == ["learning_rate=0.001 head_dim=8", "learning_rate=0.001 head_dim=16"]
    assert [(one.name, one.settings) for one in controls] == [("unchanged", {})]


def test_the_unguided_model_is_tried_with_other_settings_too() -> None:
    base = TextConfig(data=("reviews.csv",), model="bert", guides=("mdg", "pdg=0.5"))
    axes = parse_search_space(base, [("learning_rate", "1e-3", "1e-4"), ("mdg", "0.3")])
    tried, controls = grid(axes, base)
    assert [one.settings for one in tried] == [
        {"guides": ("mdg=0.3", "pdg=0.5"), "learning_rate": 0.001},
        {"guides": ("mdg=0.3", "pdg=0.5"), "learning_rate": 0.0001},
    ]
    assert [one.settings["guides"] for one in controls] == [(), ()]


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ([], "what shall be swept"),
        ([("hats", "1")], "--over hats: is no setting of training"),
        ([("seed", "1", "2")], "--over seed: is no setting of training"),
        ([("heads", "many")], "--over heads many: cannot be 'many'"),
        ([("heads",)], "--over heads: which values"),
        ([("heads", "1"), ("heads", "2")], "--over heads: is there twice"),
    ],
)
def test_what_cannot_be_swept(over: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        parse_search_space(OWN, over)


def test_trials_and_samplers_go_together(tmp_path: Path) -> None:
    axes = parse_search_space(OWN, [("heads", "1", "2")])
    for options, told in (
        ({"sampler": "tpe"}, "--trials N is missing"),
        ({"trials": 3}, "--trials is for a sampler"),
        ({"sampler": "tpe", "trials": 3, "seeds": 2}, "a sampler tries each setting once"),
    ):
        with pytest.raises(UserError, match=told):
            sweep.create_sweep(OWN, axes, tmp_path / "sweep", **options)
    with pytest.raises(UserError, match="needs two values"):
        sweep.create_sweep(OWN, [Axis("heads", (1,))], tmp_path / "sweep", sampler="tpe", trials=3)
    assert not (tmp_path / "sweep").exists()


def by_heads(settings: RunConfig, out: Path, resume: bool) -> dict[str, Any]:
    """On dev, two heads are best; on test, eight are."""
    heads = getattr(settings, "heads")  # noqa: B009
    dev, test = {2: 0.9}.get(heads, 0.5) + settings.seed / 100, {8: 0.99}.get(heads, 0.6)
    metrics = fake(settings, out) | {"figures": {"dev": {"accuracy": dev}, "test": {"accuracy": test}}}
    (out / "metrics.json").write_text(str(metrics).replace("'", '"'))
    return metrics


def test_what_is_best_on_dev_is_chosen_and_its_test_figure_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = sweep.create_sweep(OWN, parse_search_space(OWN, [("heads", "2", "4", "8")]), tmp_path / "sweep")
    work(study.ledger, study.folder, by_heads, name="worker")
    assert sweep.run_sweep(study, Resources(1))
    said = capsys.readouterr().out
    assert "Chosen: heads=2." in said
    assert "heads=2: test accuracy 0.6000 (1 seeds)" in said
    assert "unchanged: test accuracy 0.6000 (1 seeds)" in said
    assert "0.99" not in said, "test figures of what was not chosen stay unseen"
    assert (tmp_path / "sweep" / "sweep.csv").read_text().splitlines()[:2] == [
        "setting,dev,std,seeds",
        "heads=2,0.9,0.0,1",
    ]


def test_nothing_beats_the_unchanged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = TextConfig(data=("reviews.csv",), model="rpr", heads=2)
    study = sweep.create_sweep(base, parse_search_space(base, [("heads", "4", "8")]), tmp_path / "sweep", seeds=2)
    work(study.ledger, study.folder, by_heads, name="worker")
    assert sweep.run_sweep(study, Resources(1))
    assert "Chosen: unchanged: nothing that was tried beats it on dev." in capsys.readouterr().out


def test_a_sampler_draws_as_often_as_asked(tmp_path: Path) -> None:
    axes = parse_search_space(
        OWN, [("learning_rate", "1e-4", "1e-2"), ("heads", "1", "8"), ("pooling", "additive", "cls")]
    )
    study = sweep.create_sweep(OWN, axes, tmp_path / "sweep", sampler="tpe", trials=7)
    work(study.ledger, study.folder, by_heads, name="worker")
    entries = study.ledger.entries()
    assert [entry.state for entry in entries] == ["finished"] * 8
    assert entries[0].run.method == "unchanged"
    drawn: list[Any] = [entry.run.settings for entry in entries[1:]]
    assert all(1e-4 <= one.learning_rate <= 1e-2 for one in drawn)
    assert len({one.learning_rate for one in drawn}) == 7
    assert all(entry.trial.params["heads"] == one.heads for entry, one in zip(entries[1:], drawn, strict=True))
    best = max(entry.value or 0 for entry in entries)
    assert sweep.candidates(study)[0].mean == best


def test_a_search_that_lost_its_worker_goes_on(tmp_path: Path) -> None:
    study = sweep.create_sweep(
        OWN, parse_search_space(OWN, [("heads", "1", "8")]), tmp_path / "sweep", sampler="random", trials=2
    )
    claims = [study.ledger.claim("dead") for _ in range(2)]
    assert claims[1] is not None
    study.ledger.lost("dead")
    work(study.ledger, study.folder, by_heads, name="worker")
    entries = study.ledger.entries()
    assert [entry.state for entry in entries] == ["finished"] * 3
    assert claims[1].run in [entry.run for entry in entries], "with the same values"
    assert all(entry.trial.params for entry in entries[1:]), "and the sampler learns from it"


def test_the_command_line_of_a_sweep(tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def begin(base: Any, axes: Any, out: Path, **others: Any) -> None:
        seen.update(base=base, axes=axes, **others)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "create_sweep", begin)
    monkeypatch.chdir(tmp_path)
    Path("a.csv").touch()
    given = ("--data", "a.csv", "--model", "bert", "--guides", "mdg", "--seeds", 3, "--out", "sweep")
    assert (
        headwise("sweep", *given, "--over", "learning_rate", "1e-3", "1e-4", "--over", "mdg", "0.5", "0.25")[0] == 130
    )
    assert seen["axes"] == (Axis("mdg", (0.5, 0.25), True), Axis("learning_rate", (0.001, 0.0001)))
    assert (seen["base"].model, seen["seeds"], seen["sampler"], seen["trials"]) == ("bert", 3, "grid", None)


def test_a_sweep_is_no_comparison(tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "sweep"
    sweep.create_sweep(OWN, parse_search_space(OWN, [("heads", "2", "4")]), out)
    code, _, told = headwise("compare", "--resume", "--out", out)
    assert code == 2
    assert told == f"headwise: --resume: {out} holds no compare, but a study of the kind sweep\n"


def test_a_run_that_does_worse_than_others_is_stopped_early(reviews: Path, tmp_path: Path) -> None:
    base = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=3, learning_rate=0.02, batch_size=16
    )
    study = sweep.create_sweep(
        base, parse_search_space(base, [("dropout", "0", "0.1")]), tmp_path / "sweep", sampler="tpe", trials=1
    )
    ledger = study.ledger
    assert isinstance(ledger, Search)
    judged: list[tuple[int, float]] = []
    real = ledger.judge

    def judge(claim: Any, epoch: int, figure: float) -> None:
        judged.append((epoch, figure))
        ledger.study.pruner = Harsh(after=2 if claim.run.method == "unchanged" else 99)  # type: ignore[assignment]
        real(claim, epoch, figure)

    ledger.judge = judge  # type: ignore[method-assign]
    work(ledger, study.folder, train_run, name="worker")
    assert [epoch for epoch, _ in judged] == [1, 2, 1, 2, 3]
    assert [entry.state for entry in ledger.entries()] == ["pruned", "finished"]
    assert ledger.entries()[1].trial.intermediate_values == dict(judged[2:])


class Harsh:
    def __init__(self, after: int) -> None:
        self.after = after

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.last_step is not None and trial.last_step >= self.after


def test_what_fails_is_told_with_what_tries_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = TextConfig(data=(str(tmp_path / "lost.csv"),), model="rpr")
    study = sweep.create_sweep(base, parse_search_space(base, [("heads", "1", "2")]), tmp_path / "my sweep")
    work(study.ledger, study.folder, train_run, name="worker")
    assert not sweep.run_sweep(study, Resources(1))
    told = capsys.readouterr().err
    assert "lost.csv: no such file" in told
    assert f"headwise sweep --resume --out '{tmp_path / 'my sweep'}' tries again" in told
