"""Search spaces and grids."""

from typing import Any

import pytest

from headwise.errors import UserError
from headwise.studies.search_space import GUIDE_WEIGHTS, Dimension, build_grid, parse_search_space
from headwise.training import TextConfig

GUIDED = TextConfig(data=("reviews.csv",), model="bert", guides=("mdg", "pdg"))
RPR = TextConfig(data=("reviews.csv",), model="rpr")


def test_grid_of_the_paper() -> None:
    candidates, controls = build_grid(parse_search_space(GUIDED, ()), GUIDED)
    assert len(candidates) == 16
    assert {candidate.overrides["guides"] for candidate in candidates} == {
        (f"mdg={a:g}", f"pdg={b:g}") for a in GUIDE_WEIGHTS for b in GUIDE_WEIGHTS
    }
    assert [(control.name, control.overrides) for control in controls] == [("unchanged", {"guides": ()})]


def test_grid_of_training_options() -> None:
    search_space = parse_search_space(RPR, [("learning_rate", "1e-3", "1e-4"), ("--head-dim", "8", "16")])
    assert search_space == (Dimension("learning_rate", (0.001, 0.0001)), Dimension("head_dim", (8, 16)))
    candidates, controls = build_grid(search_space, RPR)
    assert [x.name for x in candidates[:2]] == ["learning_rate=0.001 head_dim=8", "learning_rate=0.001 head_dim=16"]
    assert [(control.name, control.overrides) for control in controls] == [("unchanged", {})]


def test_control_is_tried_with_all_values_of_other_options() -> None:
    base = TextConfig(data=("reviews.csv",), model="bert", guides=("mdg", "pdg=0.5"))
    search_space = parse_search_space(base, [("learning_rate", "1e-3", "1e-4"), ("mdg", "0.3")])
    candidates, controls = build_grid(search_space, base)
    assert [candidate.overrides for candidate in candidates] == [
        {"guides": ("mdg=0.3", "pdg=0.5"), "learning_rate": 0.001},
        {"guides": ("mdg=0.3", "pdg=0.5"), "learning_rate": 0.0001},
    ]
    assert [control.overrides for control in controls] == [
        {"guides": (), "learning_rate": 0.001},
        {"guides": (), "learning_rate": 0.0001},
    ]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ([], "nothing to sweep"),
        ([("hats", "1")], "--over hats: expected a training option"),
        ([("seed", "1", "2")], "--over seed: expected a training option"),
        ([("heads", "many")], "--over heads many: "),
        ([("heads",)], "--over heads: values are missing"),
        ([("heads", "1"), ("heads", "2")], "--over heads is given twice"),
    ],
)
def test_invalid_search_spaces(over: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_search_space(RPR, over)
