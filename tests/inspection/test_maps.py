"""Attention maps as pictures: a grid of heads, tokens on its outer axes, no global state."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.inspection import draw_maps, style

TOKENS = ["the", "cat", "sat"]


def maps(heads: int) -> torch.Tensor:
    return torch.rand(heads, 3, 3).softmax(dim=-1)


def test_a_row_for_each_map_and_a_column_for_each_head(tmp_path: Path) -> None:
    shown = [maps(2), maps(1)]
    figure = draw_maps(shown, TOKENS, ["plain", "tener"], heads=[["w = 1", "w = 2"], ["u"]])
    style.save_figure(figure, tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    *cells, _ = figure.axes  # the last is the colour bar
    images = [axes.get_images() for axes in cells]
    assert [len(image) for image in images] == [1, 1, 1, 0]
    for image, expected in zip(images, [shown[0][0], shown[0][1], shown[1][0]], strict=False):
        np.testing.assert_allclose(np.asarray(image[0].get_array()), expected)
        assert image[0].norm.vmax == pytest.approx(max(float(x.max()) for x in shown))
    assert [axes.get_title() for axes in cells[:3]] == ["w = 1", "w = 2", "u"]
    assert [axes.get_ylabel() for axes in cells] == ["plain", "", "tener", ""]


def test_tokens_stand_on_the_outer_axes() -> None:
    cells = draw_maps([maps(2), maps(2)], TOKENS, ["plain", "tener"]).axes
    rows = [[text.get_text() for text in axes.get_yticklabels()] for axes in cells[:4]]
    columns = [[text.get_text() for text in axes.get_xticklabels()] for axes in cells[:4]]
    assert rows == [TOKENS, [], TOKENS, []]
    assert columns == [[], [], TOKENS, TOKENS]


def test_keys_may_have_tokens_of_their_own() -> None:
    cells = draw_maps([torch.rand(1, 3, 2)], TOKENS, ["cross"], key_tokens=["die", "Katze"]).axes
    assert [text.get_text() for text in cells[0].get_xticklabels()] == ["die", "Katze"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([], TOKENS, []), "maps"),
        (([torch.rand(2, 3, 4)], TOKENS, ["a"]), r"maps\[0\] must be \(heads, 3, 3\), got shape \(2, 3, 4\)"),
        (([torch.rand(2, 3, 3)], TOKENS, ["a", "b"]), "titles must name 1 rows, got 2"),
    ],
    ids=["none", "shape", "titles"],
)
def test_what_does_not_fit_is_told(arguments: tuple[list[torch.Tensor], list[str], list[str]], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        draw_maps(*arguments)


def test_every_head_needs_its_title() -> None:
    with pytest.raises(ValueError, match="heads"):
        draw_maps([maps(2)], TOKENS, ["a"], heads=[["only one"]])


def test_colours_are_distinct() -> None:
    assert len(set(style.PALETTE)) == len(style.PALETTE) == len(set(style.MARKERS))


def test_pyplot_stays_out() -> None:
    code = "import sys, headwise.inspection; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
