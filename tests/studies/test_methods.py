"""Methods and their controls."""

import pytest

from headwise.errors import UserError
from headwise.models.configuration import SCHEMES as MODEL_SCHEMES
from headwise.studies.method_checks import check_scheme_options
from headwise.studies.methods import SCHEMES, Method, add_controls, parse_method
from headwise.training import TextConfig


def shared_options(**options: object) -> dict[str, object]:
    return {"model": "distance-aware", "guides": (), "retrofit": None, **options}


def test_schemes_are_those_of_the_models() -> None:
    assert tuple(MODEL_SCHEMES) == SCHEMES


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
def test_missing_controls_are_added(texts: list[str], names: list[str], controls: dict[str, str]) -> None:
    methods, method_controls = add_controls([parse_method(text) for text in texts], shared_options())
    assert [method.name for method in methods] == names
    assert method_controls == controls


def test_control_differs_only_in_the_treatment() -> None:
    wide = Method("wide", {"model": "rpr", "heads": 32, "positions": "learned"})
    guided = Method("guided", {"model": "bert", "guides": ("mdg",), "retrofit": "rpr", "scheme_learning_rate": 0.1})
    methods, controls = add_controls([wide, guided], shared_options())
    assert controls == {"wide": "none", "guided": "unchanged"}
    overrides = {method.name: method.overrides for method in methods}
    assert overrides["none"] == {"model": "none", "heads": 32}
    assert overrides["unchanged"] == {"model": "bert", "guides": (), "retrofit": None}


def test_guides_shared_by_all_methods_have_a_control() -> None:
    methods, _ = add_controls([parse_method("bert")], shared_options(guides=("mdg",)))
    assert [method.name for method in methods] == ["unchanged", "bert"]
    assert methods[0].overrides == {"model": "bert", "guides": ()}


@pytest.mark.parametrize("text", ["", "+mdg", "bert+", "bert+retrofit:", "bert+retrofit:rpr+retrofit:rpr"])
def test_malformed_methods(text: str) -> None:
    with pytest.raises(UserError, match="expected MODEL"):
        parse_method(text)


def test_names_are_unique() -> None:
    with pytest.raises(UserError, match="'rpr' appears twice"):
        add_controls([parse_method("rpr"), parse_method("rpr")], shared_options())


@pytest.mark.parametrize("option", ["k=4", "std=0.5", "values=false"])
def test_options_of_rpr_have_the_defaults_of_models(option: str) -> None:
    check_scheme_options(TextConfig(data=("reviews.csv",), model="rpr", scheme_options=(option,)))
    with pytest.raises(UserError, match="got 'w'"):
        check_scheme_options(TextConfig(data=("reviews.csv",), model="rpr", scheme_options=("w=1",)))
