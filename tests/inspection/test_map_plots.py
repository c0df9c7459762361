"""Tests of the plots of attention maps."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headwise.inspection import draw_averages, draw_components, draw_maps, style
from tests.fresh_python import run_fresh_python

TOKENS = ["the", "cat", "sat"]


def random_maps(heads: int) -> torch.Tensor:
    return torch.rand(heads, 3, 3).softmax(dim=-1)


def test_maps_have_a_row_for_each_entry_and_a_column_for_each_head(tmp_path: Path) -> None:
    maps = [random_maps(2), random_maps(1)]
    figure = draw_maps(maps, TOKENS, ["plain", "tener"], heads=[["w = 1", "w = 2"], ["u"]])
    style.save_figure(figure, tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    *panels, _ = figure.axes  # the last one is the color bar
    images = [axes.get_images() for axes in panels]
    assert [len(image) for image in images] == [1, 1, 1, 0]
    for image, expected in zip(images, [maps[0][0], maps[0][1], maps[1][0]], strict=False):
        np.testing.assert_allclose(np.asarray(image[0].get_array()), expected)
        assert image[0].norm.vmax == pytest.approx(max(float(x.max()) for x in maps))
    assert [axes.get_title() for axes in panels[:3]] == ["w = 1", "w = 2", "u"]
    assert [axes.get_ylabel() for axes in panels] == ["plain", "", "tener", ""]


def test_tokens_label_the_outer_axes() -> None:
    panels = draw_maps([random_maps(2), random_maps(2)], TOKENS, ["plain", "tener"]).axes
    y_labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in panels[:4]]
    x_labels = [[text.get_text() for text in axes.get_xticklabels()] for axes in panels[:4]]
    assert y_labels == [TOKENS, [], TOKENS, []]
    assert x_labels == [[], [], TOKENS, TOKENS]


def test_keys_may_have_other_tokens_than_queries() -> None:
    panels = draw_maps([torch.rand(1, 3, 2)], TOKENS, ["cross"], key_tokens=["die", "Katze"]).axes
    assert [text.get_text() for text in panels[0].get_xticklabels()] == ["die", "Katze"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], TOKENS, []), "maps must not be empty"),
        (([torch.rand(2, 3, 4)], TOKENS, ["a"]), r"maps\[0\] must be \(heads, 3, 3\), got shape \(2, 3, 4\)"),
        (([torch.rand(2, 3, 3)], TOKENS, ["a", "b"]), "titles must have 1 entries, one for each row, got 2"),
    ],
    ids=["empty", "shape", "titles"],
)
def test_mismatched_arguments_are_errors(
    arguments: tuple[list[torch.Tensor], list[str], list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        draw_maps(*arguments)


def test_each_head_requires_a_title() -> None:
    with pytest.raises(ValueError, match="heads must have a title for each head"):
        draw_maps([random_maps(2)], TOKENS, ["a"], heads=[["only one"]])


def test_averages_and_their_differences() -> None:
    plain, guided = np.random.default_rng(0).random((2, 6, 20, 20))
    figure = draw_averages({"plain": plain, "guided": guided}, [f"t{i}" for i in range(20)], max_tokens=15)
    images = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes if axes.get_images()][:3]
    plain_mean, guided_mean = plain.mean(axis=0)[:15, :15], guided.mean(axis=0)[:15, :15]
    for image, expected in zip(images, (plain_mean, guided_mean, guided_mean - plain_mean), strict=True):
        np.testing.assert_allclose(image, expected)


def test_models_share_principal_components() -> None:
    plain, guided = np.random.default_rng(0).random((2, 6, 5, 5))
    panels = draw_components({"plain": plain, "guided": guided}, num_layers=2).axes[:2]
    points = np.concatenate([np.asarray(axes.collections[0].get_offsets()) for axes in panels])
    features = np.concatenate([plain, guided]).reshape(12, -1)
    _, singular_values, _ = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(points, axis=0), singular_values[:2])
    assert panels[0].get_xlim() == panels[1].get_xlim()


def test_colors_and_markers_are_distinct() -> None:
    assert len(set(style.PALETTE)) == len(style.PALETTE) == len(set(style.MARKERS))


@pytest.mark.long  # it starts a process that imports torch; tests/test_imports.py starts others in the short form
def test_pyplot_is_not_imported() -> None:
    code = "import sys, headwise.inspection; print(*(f'matplotlib.{x}' in sys.modules for x in ('figure', 'pyplot')))"
    assert run_fresh_python(code) == "True False\n"
