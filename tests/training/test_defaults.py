"""Settings that follow the number of rows, and values of the user, which always win."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headwise.studies.reproduction.planning import ReproduceOptions, plan_reproduction
from headwise.studies.reproduction.registry import get_study
from headwise.training import TextConfig
from headwise.training.core import arguments
from headwise.training.core.config import EncoderConfig
from headwise.training.core.defaults import choose_settings, fill_unset
from tests.training.conftest import Headwise

TINY = ("--heads", 2, "--head-dim", 8, "--word-dim", 16)


@pytest.mark.parametrize("from_scratch", [False, True])
def test_fewer_rows_get_more_epochs_but_not_fewer_steps_per_run(from_scratch: bool) -> None:
    sizes = (64, 200, 500, 2_000, 8_000, 1_000_000)
    settings = [choose_settings(rows, from_scratch=from_scratch) for rows in sizes]
    epochs = [each.epochs for each in settings]
    assert min(epochs) >= 3
    assert max(epochs) <= 40
    steps = [each.epochs * rows / each.batch_size for each, rows in zip(settings, sizes, strict=True)]
    assert steps == sorted(steps)


def test_fine_tuning_takes_a_lower_rate_than_training_from_scratch() -> None:
    for rows in (64, 500, 8_000):
        fine_tuning, scratch = (choose_settings(rows, from_scratch=x) for x in (False, True))
        assert fine_tuning.learning_rate < scratch.learning_rate / 10


def test_pairs_take_a_higher_rate_from_1000_rows_on() -> None:
    rates = [
        [choose_settings(rows, from_scratch=False, is_pair=is_pair).learning_rate for rows in (64, 999, 1000, 20_000)]
        for is_pair in (False, True)
    ]
    assert rates == [[5e-5] * 4, [5e-5, 5e-5, 1e-4, 1e-4]]


def test_values_of_the_user_win() -> None:
    given = {"learning_rate": 2e-5, "batch_size": 7, "epochs": 1.5, "warmup_steps": 0.0, "early_stopping_patience": 2}
    for name, value in given.items():
        config = EncoderConfig(**{name: value})  # type: ignore[arg-type]
        resolved = fill_unset(config, choose_settings(200, from_scratch=False), 200)
        assert getattr(resolved, name) == value
        assert all(getattr(resolved, other) not in (None, given[other]) for other in given if other != name)


def test_patience_covers_500_steps_and_3_to_10_epochs() -> None:
    def patience(rows: int, **options: int) -> int | None:
        config = EncoderConfig(batch_size=10, **options)  # type: ignore[arg-type]
        return fill_unset(config, choose_settings(rows, from_scratch=False), rows).early_stopping_patience

    assert patience(100) == 10, "10 steps per epoch"
    assert patience(1000) == 5, "100 steps per epoch"
    assert patience(5000, gradient_accumulation_steps=5) == 5, "100 steps per epoch"
    assert patience(1_000_000) == 3


def test_chosen_settings_are_printed_and_written(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    out = tmp_path / "run"
    code, _, stderr = headwise("train", "--data", reviews, "--out", out, "--epochs", 2, *TINY)
    assert code == 0
    assert "learning rate 0.003, batch size 32, warm-up 0.05: chosen for 128 training rows" in stderr
    assert stderr.count("the model is trained from scratch on 128 rows; a pretrained model usually learns more") == 1
    written = yaml.safe_load((out / "run.yaml").read_text())
    assert (written["learning_rate"], written["batch_size"], written["epochs"]) == (0.003, 32, 2.0)
    assert written["early_stopping_patience"] == 10, "128 rows are 4 steps per epoch"

    again = tmp_path / "again"
    code, _, stderr = headwise("train", "--config", out / "run.yaml", "--out", again)
    assert code == 0
    assert "chosen for" not in stderr
    assert yaml.safe_load((again / "run.yaml").read_text()) == written


def test_reproductions_keep_the_settings_of_the_papers(tmp_path: Path) -> None:
    """Dev trials vary learning rates around that of the paper; everything else is as in the paper."""

    def settings(study: str, **overrides: float) -> tuple[set[float | None], set[Any]]:
        tasks = {task: str(tmp_path) for task in get_study(study).tasks}
        plan = plan_reproduction(study, get_study(study), ReproduceOptions(tasks, (), overrides), seeds=1)
        configs = [run.config for run in plan.runs if isinstance(run.config, EncoderConfig)]
        others = {
            (config.batch_size, config.epochs, config.warmup_steps, config.early_stopping_patience)
            for config in configs
        }
        return {config.learning_rate for config in configs}, others

    rates, others = settings("da-table3")
    assert 1e-3 in rates
    assert len(rates) > 1
    assert others == {(64, 10, 0.0, 3)}
    assert settings("da-table5")[1] == {(64, 5, 0.0, 3)}
    rates, others = settings("guiding-table2")
    assert 1e-5 in rates
    assert others == {(64, 5, 0.0, 3), (64, 20, 0.0, 3)}
    assert (64, 1, 0.0, 3) in settings("guiding-table4")[1]
    rates, _ = settings("da-table3", learning_rate=5e-4)
    assert 5e-4 in rates
    assert 1e-3 not in rates


def test_studies_store_unset_options_as_unset() -> None:
    """Every run of a study chooses by its own rows; all methods of one kind of model choose alike."""
    assert TextConfig(data=("reviews.csv",)).to_yaml().splitlines() == [
        "data:",
        "- reviews.csv",
        "model: distance-aware",
        "seed: 0",
    ]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_tracker_reaches_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(arguments.TRACKERS, name, lambda: True)
    config = EncoderConfig(report_to=name)  # type: ignore[arg-type]
    assert arguments.build_arguments(config, tmp_path).report_to == [name]
    assert arguments.build_arguments(EncoderConfig(report_to="none"), tmp_path).report_to == []


@pytest.mark.parametrize("is_enabled", [False, True])
@pytest.mark.filterwarnings("error::FutureWarning")  # transformers 5.23 has other names for these arguments
def test_gradient_checkpointing_reaches_the_trainer(tmp_path: Path, is_enabled: bool) -> None:
    options = arguments.checkpointing_arguments(is_enabled)
    built = arguments.build_arguments(EncoderConfig(report_to="none"), tmp_path, **options)
    assert built.gradient_checkpointing == is_enabled
    assert built.gradient_checkpointing_kwargs == ({"use_reentrant": False} if is_enabled else None)


def test_a_constant_schedule_has_no_warm_up(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    sizes = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--epochs", 1)
    options = ("--data", reviews, *sizes, "--lr-scheduler-type", "constant")
    code, _, stderr = headwise("train", *options, "--out", tmp_path / "run")
    assert code == 0
    assert "warm-up" not in stderr
    code, _, stderr = headwise("train", *options, "--warmup-steps", 3, "--out", tmp_path / "given")
    assert code == 0
    assert "--warmup-steps 3 has no effect with --lr-scheduler-type constant" in stderr
