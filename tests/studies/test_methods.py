"""What is compared, and the controls that come with it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headwise.cli.compare import parse_method_argument
from headwise.errors import UserError
from headwise.models.configuration import SCHEMES as MODELS
from headwise.studies.methods import SCHEMES, Method, parse_method, with_controls
from headwise.studies.plan import runs
from headwise.training import TextConfig
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.translation.config import TranslationConfig

BASE = TextConfig(data=("reviews.csv",))


def shared(**settings: object) -> dict[str, object]:
    return {"model": "distance-aware", "guides": (), "retrofit": None, **settings}


def test_schemes_are_those_of_the_models() -> None:
    assert tuple(MODELS) == SCHEMES


@pytest.mark.parametrize(
    ("texts", "names", "controls"),
    [
        (["plain", "rpr"], ["none", "plain", "rpr"], {"plain": "none", "rpr": "none"}),
        (["rpr", "none"], ["rpr", "none"], {"rpr": "none"}),
        (["bert+mdg", "bert+pdg"], ["bert", "bert+mdg", "bert+pdg"], {"bert+mdg": "bert", "bert+pdg": "bert"}),
        (["bert+mdg", "bert"], ["bert+mdg", "bert"], {"bert+mdg": "bert"}),
        (["bert+retrofit:rpr"], ["bert", "bert+retrofit:rpr"], {"bert+retrofit:rpr": "bert"}),
        (["a+mdg", "b+mdg"], ["a", "b", "a+mdg", "b+mdg"], {"a+mdg": "a", "b+mdg": "b"}),
        (["a", "b"], ["a", "b"], {}),
    ],
)
def test_controls_are_added_where_missing(texts: list[str], names: list[str], controls: dict[str, str]) -> None:
    found, their = with_controls([parse_method(text) for text in texts], shared())
    assert [one.name for one in found] == names
    assert their == controls


def test_a_control_is_the_same_but_for_what_is_to_help() -> None:
    wide = Method("wide", {"model": "rpr", "heads": 32, "positions": "learned"})
    guided = Method("guided", {"model": "bert", "guides": ("mdg",), "retrofit": "rpr", "scheme_learning_rate": 0.1})
    found, their = with_controls([wide, guided], shared())
    assert their == {"wide": "none", "guided": "unchanged"}
    by_name = {one.name: one.settings for one in found}
    assert by_name["none"] == {"model": "none", "heads": 32}
    assert by_name["unchanged"] == {"model": "bert", "guides": (), "retrofit": None}


def test_guides_that_all_methods_share_have_a_control_too() -> None:
    found, _ = with_controls([parse_method("bert")], shared(guides=("mdg",)))
    assert [one.name for one in found] == ["unchanged", "bert"]
    assert found[0].settings == {"model": "bert", "guides": ()}


@pytest.mark.parametrize("text", ["", "+mdg", "bert+", "bert+retrofit:", "bert+retrofit:rpr+retrofit:rpr"])
def test_methods_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match="expected MODEL"):
        parse_method(text)


def test_a_name_is_there_once() -> None:
    with pytest.raises(UserError, match="'rpr' is there twice"):
        with_controls([parse_method("rpr"), parse_method("rpr")], shared())


def test_a_method_of_options() -> None:
    found = parse_method_argument('wide="--model rpr --heads 32"'.replace('"', ""), BASE)
    assert found == Method("wide", {"model": "rpr", "heads": 32})
    assert parse_method_argument("bert+pdg=0.1", BASE) == parse_method("bert+pdg=0.1")
    assert parse_method_argument("usual=", BASE) == Method("usual", {})
    with pytest.raises(UserError, match=r"--methods wide: .*--hats"):
        parse_method_argument("wide=--hats 3", BASE)


def test_runs_are_methods_by_seeds_with_their_settings() -> None:
    base = TextConfig(data=("reviews.csv",), vectors=Path("glove.txt"), dropout=0.5, epochs=2)
    found = runs([base], [parse_method("plain"), parse_method("bert+mdg")], [3, 4])
    assert [run.key for run in found] == [
        ("reviews.csv", "plain", 3),
        ("reviews.csv", "bert+mdg", 3),
        ("reviews.csv", "plain", 4),
        ("reviews.csv", "bert+mdg", 4),
    ]
    plain, bert = found[0].settings, found[1].settings
    assert isinstance(plain, TextConfig)
    assert isinstance(bert, TextConfig)
    assert (plain.dropout, plain.epochs, plain.seed, plain.vectors) == (0.5, 2, 3, Path("glove.txt").absolute())
    assert (bert.guides, bert.epochs, bert.vectors, bert.dropout) == (("mdg",), 2, None, 0.2), "what is not its concern"
    assert len({run.place for run in found}) == 4


def test_schemes_of_tasks_that_have_them_apart_from_models() -> None:
    base = TranslationConfig(data=("pairs",), source="en", target="de", model="small", k=4)
    found, their = with_controls([parse_method("rpr"), Method("keys", {"relative": "keys"})], asdict(base))
    assert their == {"rpr": "none", "keys": "none"}
    made: list[Any] = [run.settings for run in runs([base], found, [1])]
    assert [(one.model, one.scheme, one.k, one.relative) for one in made] == [
        ("small", "none", None, "both"),
        ("small", "rpr", 4, "both"),
        ("small", "rpr", 4, "keys"),
    ]


def test_click_logs_have_their_control() -> None:
    base = RecommendationConfig(task="mind", data=("log",), news_scheme="rpr")
    found, _ = with_controls([parse_method("tener")], asdict(base))
    made: list[Any] = [run.settings for run in runs([base], found, [1])]
    assert [(one.model, one.news_scheme) for one in made] == [("none", None), ("tener", "rpr")]


def test_a_method_that_a_task_cannot_have() -> None:
    with pytest.raises(UserError, match="--methods odd: hats is no setting"):
        runs([BASE], [Method("odd", {"hats": 3})], [0])
    with pytest.raises(UserError, match="--methods odd: --heads must be at least 1, got 0"):
        runs([BASE], [Method("odd", {"heads": 0})], [0])
