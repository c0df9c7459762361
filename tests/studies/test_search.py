"""Searches with a sampler, and early stopping."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwise.studies import sweep
from headwise.studies.scheduler import Scheduler
from headwise.studies.search import Search
from headwise.studies.search_space import parse_search_space
from headwise.studies.study import Study
from headwise.studies.worker import Outcome, train_run
from headwise.training import TextConfig
from tests.studies.conftest import states
from tests.studies.fakes import work
from tests.studies.test_sweep import RPR, train_by_heads


def test_sampler_runs_the_requested_number_of_trials(tmp_path: Path) -> None:
    search_space = parse_search_space(
        RPR, [("learning_rate", "1e-4", "1e-2"), ("heads", "1", "8"), ("pooling", "additive", "cls")]
    )
    study = sweep.create_sweep(RPR, search_space, tmp_path / "sweep", sampler="tpe", trials=7)
    work(study, train_by_heads)
    assert states(study) == ["finished"] * 8
    control, *sampled = study.trials.statuses()
    assert control.run.method == "unchanged"
    configs: list[Any] = [status.run.config for status in sampled]
    assert all(1e-4 <= config.learning_rate <= 1e-2 for config in configs)
    assert len({config.learning_rate for config in configs}) == 7
    assert [status.trial.params["heads"] for status in sampled] == [config.heads for config in configs]
    best = max(status.value or 0 for status in study.trials.statuses())
    assert sweep.rank_candidates(study)[0].mean == best


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_repeated_search_samples_the_same_values(tmp_path: Path, sampler: str) -> None:
    """Also if it was resumed after each run. Another seed samples other values."""
    search_space = parse_search_space(RPR, [("learning_rate", "1e-4", "1e-2"), ("heads", "1", "8")])

    def sample(name: str, seed: int, num_resumes: int = 0) -> list[Any]:
        base = replace(RPR, seed=seed)
        study = sweep.create_sweep(base, search_space, tmp_path / name, sampler=sampler, trials=8)
        for _ in range(num_resumes):
            scheduler = Scheduler(study.trials)
            claimed = scheduler.claim()
            assert claimed is not None
            metrics = train_by_heads(claimed.run.config, study.study_dir.run_dir(claimed.run), False)
            scheduler.end(Outcome(claimed.trial_id, "finished", metrics["metrics"]["dev"]["accuracy"]))
            study = Study.resume(study.study_dir.path)
        work(study, train_by_heads)
        return [status.trial.params for status in study.trials.statuses()]

    first = sample("first", 0)
    assert sample("again", 0) == first
    assert len({x["learning_rate"] for x in first[1:]}) == 8
    assert sample("seed-1", 1) != first
    assert sample("resumed", 0, num_resumes=7) == first


def test_run_of_a_dead_worker_keeps_its_sampled_values(tmp_path: Path) -> None:
    study = sweep.create_sweep(
        RPR, parse_search_space(RPR, [("heads", "1", "8")]), tmp_path / "sweep", sampler="random", trials=2
    )
    scheduler = Scheduler(study.trials)
    _, claimed = (scheduler.claim() for _ in range(2))
    assert claimed is not None
    scheduler.end(Outcome(claimed.trial_id, "died"))
    work(study, train_by_heads)
    assert states(study) == ["finished"] * 3
    statuses = study.trials.statuses()
    assert claimed.run in [status.run for status in statuses]
    assert all(status.trial.params for status in statuses[1:]), "the sampler can learn from the new trial"


def test_runs_are_pruned_by_their_dev_metric(reviews: Path, tmp_path: Path) -> None:
    base = TextConfig(
        data=(str(reviews),), heads=2, head_dim=8, word_dim=16, epochs=3, learning_rate=0.02, batch_size=16
    )
    study = sweep.create_sweep(
        base, parse_search_space(base, [("dropout", "0", "0.1")]), tmp_path / "sweep", sampler="tpe", trials=1
    )
    trials = study.trials
    assert isinstance(trials, Search)
    trials.study.pruner = PruneControl(after_epoch=2)  # type: ignore[assignment]
    work(study, train_run)
    assert states(study) == ["pruned", "finished"]
    control, sampled = trials.statuses()
    assert list(control.trial.intermediate_values) == [1, 2]
    assert list(sampled.trial.intermediate_values) == [1, 2, 3]
    assert all(0 <= value <= 1 for value in sampled.trial.intermediate_values.values())


class PruneControl:
    def __init__(self, after_epoch: int) -> None:
        self.after_epoch = after_epoch

    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.user_attrs["method"] == "unchanged" and trial.last_step >= self.after_epoch)
