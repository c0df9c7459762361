"""The learning rate of position schemes: which parameters it reaches, and how far they move."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from headwise.attention.schemes.scheme import Scheme
from headwise.errors import UserError
from headwise.training import TextConfig, train
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.core.config import RunConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.translation.config import TranslationConfig
from tests.short_form import keep_short
from tests.training.conftest import Headwise
from tests.training.recommendation.conftest import log
from tests.training.translation.conftest import build_config, pairs

__all__ = ["log", "pairs"]

TINY: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "epochs": 1, "dropout": 0.0}
RATE = 1e-3


class Movement(TrainerCallback):
    """Records how far the parameters of schemes, and all others, move during a run."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.names = {
            f"{name}.{parameter}"
            for name, module in model.named_modules()
            if isinstance(module, Scheme)
            for parameter, _ in module.named_parameters()
        }
        self.start = {name: value.detach().clone() for name, value in model.named_parameters()}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parameters = dict(kwargs["model"].named_parameters())
        moved = {name: float((parameters[name].detach() - x).abs().max()) for name, x in self.start.items()}
        self.scheme = {name.rpartition(".")[2]: moved[name] for name in self.names}
        self.others = max(value for name, value in moved.items() if name not in self.names)


def measure(config: RunConfig, out_dir: Path) -> Movement:
    movement = Movement()
    with extra_callbacks(movement):
        train(config, out_dir)
    return movement


def configs(kind: str, reviews: Path, log: Path, pairs: Path, scheme: str, rate: float | None) -> RunConfig:
    shared: dict[str, Any] = {"learning_rate": RATE, "scheme_learning_rate": rate, "report_to": "none"}
    if kind == "text":
        return TextConfig(data=(str(reviews),), model=scheme, **TINY, **shared)
    if kind == "recommendation":
        options = {**TINY, "batch_size": 32, "history": 10}
        return RecommendationConfig(task="mind", data=(str(log),), model=scheme, **options, **shared)
    return build_config(pairs, scheme=scheme, steps=10, warmup=1, **shared)


@pytest.mark.short_form("values")
@pytest.mark.parametrize("kind", keep_short(("text", "recommendation", "translation"), "text", "recommendation"))
@pytest.mark.parametrize("scheme", ["distance-aware", "rpr"])
def test_the_rate_reaches_the_parameters_of_schemes_and_no_others(
    kind: str, scheme: str, reviews: Path, log: Path, pairs: Path, tmp_path: Path
) -> None:
    names = {"distance-aware": {"w", "v"}, "rpr": {"key_table", "value_table"}}[scheme]
    same, fast = (
        measure(configs(kind, reviews, log, pairs, scheme, rate), tmp_path / str(rate)) for rate in (None, 100 * RATE)
    )
    assert same.scheme.keys() == fast.scheme.keys() == names
    for name in names:
        assert fast.scheme[name] > 10 * same.scheme[name], name
        assert fast.scheme[name] > 0.05, "they leave the neighborhood of their initial values"
    assert fast.others < 5 * same.others, "all other parameters keep the rate of the model"


def test_a_tiny_rate_freezes_the_scheme(reviews: Path, tmp_path: Path) -> None:
    config = TextConfig(
        data=(str(reviews),), model="distance-aware", learning_rate=RATE, scheme_learning_rate=1e-12, **TINY
    )
    movement = measure(config, tmp_path / "run")
    assert max(movement.scheme.values()) < 1e-8 < movement.others


@pytest.mark.parametrize(
    "config",
    [
        lambda: TextConfig(data=("x.csv",), model="plain", scheme_learning_rate=0.1),
        lambda: TextConfig(data=("x.csv",), model="bert-base-uncased", scheme_learning_rate=0.1),
        lambda: TextConfig(data=("x.csv",), model="bert", retrofit="alibi", scheme_learning_rate=0.1),
        lambda: RecommendationConfig(task="mind", data=("x",), model="none", scheme_learning_rate=0.1),
        lambda: TranslationConfig(data=("x",), source="en", target="de", scheme="plain", scheme_learning_rate=0.1),
    ],
)
def test_schemes_without_parameters_are_refused(config: Any) -> None:
    with pytest.raises(UserError, match="requires a scheme with trainable parameters"):
        config()


def test_schemes_with_parameters_are_accepted() -> None:
    TextConfig(data=("x.csv",), model="bert", retrofit="rpr", scheme_learning_rate=0.1)
    TextConfig(data=("x.csv",), model="alibi", scheme_options=("learned=true",), scheme_learning_rate=0.1)
    RecommendationConfig(task="mind", data=("x",), model="bert", scheme_learning_rate=0.1)
    RecommendationConfig(task="mind", data=("x",), model="none", news_scheme="rpr", scheme_learning_rate=0.1)


def test_the_rate_must_be_positive(reviews: Path, tmp_path: Path, headwise: Headwise) -> None:
    code, _, error = headwise("train", "--data", reviews, "--scheme-learning-rate", 0, "--out", tmp_path / "run")
    assert (code, "--scheme-learning-rate must be above 0" in error) == (2, True)


def test_resumed_runs_keep_the_groups(reviews: Path, tmp_path: Path) -> None:
    """A checkpoint of an optimizer can be loaded only into the same groups."""
    config = TextConfig(
        data=(str(reviews),), model="rpr", scheme_learning_rate=0.1, learning_rate=RATE, **{**TINY, "epochs": 2}
    )
    train(config, tmp_path / "run")
    checkpoint = max((tmp_path / "run" / "checkpoints").glob("checkpoint-*"), key=lambda x: int(x.name.split("-")[1]))
    groups = torch.load(checkpoint / "optimizer.pt", weights_only=True)["param_groups"]
    assert [group.get("headwise", False) for group in groups].count(True) == 1
    assert next(group for group in groups if group.get("headwise"))["initial_lr"] == 0.1
