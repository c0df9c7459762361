"""Planned runs and their configurations."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import UserError
from headwise.studies.methods import Method, add_controls, parse_method
from headwise.studies.plan import plan_runs
from headwise.training import TextConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.translation.config import TranslationConfig


def test_runs_are_seeds_by_methods() -> None:
    base = TextConfig(data=("reviews.csv",), vectors=Path("glove.txt"), dropout=0.5, epochs=2)
    runs = plan_runs([base], [parse_method("plain"), parse_method("bert+mdg")], [3, 4])
    assert [run.key for run in runs] == [
        ("reviews.csv", "plain", 3),
        ("reviews.csv", "bert+mdg", 3),
        ("reviews.csv", "plain", 4),
        ("reviews.csv", "bert+mdg", 4),
    ]
    plain, bert = runs[0].config, runs[1].config
    assert isinstance(plain, TextConfig)
    assert isinstance(bert, TextConfig)
    assert (plain.dropout, plain.epochs, plain.seed, plain.vectors) == (0.5, 2, 3, Path("glove.txt").absolute())
    assert (bert.guides, bert.epochs) == (("mdg",), 2)
    assert (bert.vectors, bert.dropout) == (None, 0.2), "options of models from scratch are reset"
    assert len({run.relative_dir for run in runs}) == 4


def test_translation_has_schemes_and_models() -> None:
    base = TranslationConfig(data=("pairs",), source="en", target="de", model="small", k=4)
    methods, controls = add_controls([parse_method("rpr"), Method("keys", {"relative": "keys"})], asdict(base))
    assert controls == {"rpr": "none", "keys": "none"}
    configs: list[Any] = [run.config for run in plan_runs([base], methods, [1])]
    assert [(config.model, config.scheme, config.k, config.relative) for config in configs] == [
        ("small", "none", None, "both"),
        ("small", "rpr", 4, "both"),
        ("small", "rpr", 4, "keys"),
    ]


def test_control_of_click_logs() -> None:
    base = RecommendationConfig(task="mind", data=("log",), news_scheme="rpr")
    methods, _ = add_controls([parse_method("tener")], asdict(base))
    configs: list[Any] = [run.config for run in plan_runs([base], methods, [1])]
    assert [(config.model, config.news_scheme) for config in configs] == [("none", None), ("tener", "rpr")]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hats": 3}, "--methods odd: reviews.csv has no option hats"),
        ({"heads": 0}, "--methods odd: --heads must be at least 1, got 0"),
    ],
)
def test_methods_that_do_not_fit_the_task(overrides: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_runs([TextConfig(data=("reviews.csv",))], [Method("odd", overrides)], [0])
