"""Tests of the plots of runs: the plotted data are the given data."""

import numpy as np
import pytest

from headwise.inspection import draw_boxes, draw_curves, draw_differences, draw_ranks


def test_curves_have_a_line_for_each_run_and_a_color_for_each_method() -> None:
    runs = {"plain": [[(0.0, 3.0), (1.0, 2.0)], [(0.0, 3.5), (1.0, 1.0)]], "guided": [[(0.0, 4.0)]]}
    (axes,) = draw_curves(runs, x="epoch", y="loss").axes
    lines = axes.get_lines()
    assert [list(map(tuple, np.asarray(line.get_xydata()))) for line in lines] == [*runs["plain"], *runs["guided"]]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "guided"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "loss")


@pytest.mark.parametrize("curve", [[(1.0, 0.8123)], [(1.0, 0.81231), (2.0, 0.81232)], [(0.5, 0.0)]])
def test_short_and_constant_curves_have_sensible_axes(curve: list[tuple[float, float]]) -> None:
    figure = draw_curves({"plain": [curve]}, x="epoch", y="accuracy")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert left == 0
    assert right > curve[-1][0]
    assert all(float(label.get_text()).is_integer() for label in axes.get_xticklabels())
    assert top - bottom >= 0.08, "an almost constant curve is not magnified"
    assert bottom < curve[0][1] < top
    assert not axes.yaxis.get_offset_text().get_text()


def test_differences_have_a_point_for_each_pair_and_a_bar_at_the_mean() -> None:
    (axes,) = draw_differences({"distance": [1.0, -3.0], "guided": [2.0, 2.0]}, x="points").axes
    zero_line, *lines = axes.get_lines()
    assert np.asarray(zero_line.get_xdata()).tolist() == [0.0, 0.0]
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


def test_differences_may_all_be_zero() -> None:
    draw_differences({"guided": [0.0, 0.0]}, x="points").draw_without_rendering()


def test_intervals_are_inside_the_axes() -> None:
    (axes,) = draw_differences({"guided": [1.0, 2.0]}, x="points", intervals={"guided": (-4.0, 7.0)}).axes
    assert [-4.0, 7.0] in [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
    assert axes.get_xlim()[1] > 7.0


def test_boxes_show_the_median_and_all_values() -> None:
    (axes,) = draw_boxes({"none": [1.0, 2.0, 4.0], "plain": [3.0]}, x="accuracy").axes
    lines = [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()]
    assert [1.0, 2.0, 4.0] in lines
    assert [2.0, 2.0] in lines, "the median"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["none", "plain"]


def test_methods_without_significant_difference_are_joined() -> None:
    (axes,) = draw_ranks({"a": 1.0, "b": 2.5, "c": 2.5, "d": 4.0}, critical_difference=1.6).axes
    texts = [text.get_text().strip() for text in axes.texts]
    assert "a  1.00" in texts
    assert "4.00  d" in texts
    bars = [np.asarray(line.get_xdata()).round(2).tolist() for line in axes.get_lines() if line.get_linewidth() > 3]
    assert bars == [[0.96, 2.54], [2.46, 4.04]]
