"""Curves, differences and distances: what is drawn is what was given."""

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.inspection import draw_boxes, draw_curves, draw_differences, draw_distances, draw_ranks


def test_a_line_for_each_run_and_a_colour_for_each_method() -> None:
    runs = {"plain": [[(0.0, 3.0), (1.0, 2.0)], [(0.0, 3.5), (1.0, 1.0)]], "guided": [[(0.0, 4.0)]]}
    (axes,) = draw_curves(runs, x="epoch", y="loss").axes
    lines = axes.get_lines()
    assert [list(map(tuple, np.asarray(line.get_xydata()))) for line in lines] == [*runs["plain"], *runs["guided"]]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "guided"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "loss")


def test_a_point_for_each_pair_and_a_bar_at_their_mean() -> None:
    (axes,) = draw_differences({"distance": [1.0, -3.0], "guided": [2.0, 2.0]}, x="points").axes
    nought, *lines = axes.get_lines()
    assert np.asarray(nought.get_xdata()).tolist() == [0.0, 0.0]
    assert [np.asarray(line.get_xdata()).tolist() for line in lines] == [
        [1.0, -3.0],
        [-1.0, -1.0],
        [2.0, 2.0],
        [2.0, 2.0],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["distance", "guided"]
    low, high = axes.get_xlim()
    assert low == -high
    assert high > 3.0


def test_no_difference_at_all_can_be_drawn() -> None:
    draw_differences({"guided": [0.0, 0.0]}, x="points").draw_without_rendering()


def test_w_v_and_f_of_every_head() -> None:
    layers = [hw.DistanceAware(heads=3, v_std=1.0), hw.DistanceAware(heads=3, v_std=1.0)]
    w, v, curves, *_ = draw_distances(layers, reach=5).axes
    for axes, name in ((w, "w"), (v, "v")):
        expected = torch.stack([getattr(layer, name) for layer in layers]).detach()
        np.testing.assert_allclose(np.asarray(axes.get_images()[0].get_array()), expected)
    assert len(curves.get_lines()) == 6
    ws, vs = layers[1].w[2].item(), layers[1].v[2].item()  # type: ignore[index]
    f = [(1 + np.exp(vs)) / (1 + np.exp(vs - ws * distance)) for distance in range(6)]
    np.testing.assert_allclose(np.asarray(curves.get_lines()[5].get_ydata()), f, rtol=1e-6)


@pytest.mark.parametrize("mapping", ["clip", "linear"])
def test_mappings_without_v_have_no_picture_of_it(mapping: str) -> None:
    w, curves, *_ = draw_distances([hw.DistanceAware(heads=2, mapping=mapping)]).axes  # type: ignore[arg-type]
    assert w.get_title().startswith("w")
    assert curves.get_title().startswith("f")


def test_an_interval_is_drawn_whole() -> None:
    (axes,) = draw_differences({"guided": [1.0, 2.0]}, x="points", intervals={"guided": (-4.0, 7.0)}).axes
    assert [-4.0, 7.0] in [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
    assert axes.get_xlim()[1] > 7.0


def test_a_box_and_all_points_for_each_method() -> None:
    (axes,) = draw_boxes({"none": [1.0, 2.0, 4.0], "plain": [3.0]}, x="accuracy").axes
    drawn = [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
    assert [1.0, 2.0, 4.0] in drawn
    assert [2.0, 2.0] in drawn, "the median"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "plain"]


def test_methods_that_are_alike_are_joined() -> None:
    (axes,) = draw_ranks({"a": 1.0, "b": 2.5, "c": 2.5, "d": 4.0}, critical=1.6).axes
    texts = [text.get_text().strip() for text in axes.texts]
    assert "a  1.00" in texts
    assert "4.00  d" in texts
    bars = [np.asarray(line.get_xdata()).round(2).tolist() for line in axes.get_lines() if line.get_linewidth() > 3]
    assert bars == [[0.96, 2.54], [2.46, 4.04]]
