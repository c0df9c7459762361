"""Tests of the plots of a classifier's results: the plotted data are the given data."""

from io import BytesIO

import numpy as np
import pytest

from headwise.inspection import draw_confusion_matrix, draw_reliability
from headwise.inspection.style import save_figure


def test_cells_have_counts_and_shares_of_the_true_class() -> None:
    axes, _ = draw_confusion_matrix([[8, 2], [0, 5]], ["bad", "good"]).axes
    (image,) = axes.get_images()
    assert np.asarray(image.get_array()).tolist() == [[0.8, 0.2], [0.0, 1.0]]
    assert {(*text.get_position(), text.get_text()) for text in axes.texts} == {
        (0, 0, "8"),
        (1, 0, "2"),
        (0, 1, "0"),
        (1, 1, "5"),
    }
    assert [label.get_text() for label in axes.get_yticklabels()] == ["bad", "good"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")


@pytest.mark.parametrize("num_classes", [2, 12, 60])
def test_any_names_and_numbers_of_classes_can_be_drawn(num_classes: int) -> None:
    names = [f"$class_{i}^ \n {'long ' * 20}" for i in range(num_classes)]
    figure = draw_confusion_matrix(np.zeros((num_classes, num_classes), dtype=int).tolist(), names)
    figure.draw_without_rendering()
    assert figure.get_figwidth() < 14


def test_reliability_shows_accuracy_by_confidence() -> None:
    bins = [
        {"low": 0.6, "high": 0.7, "count": 5, "confidence": 0.66, "accuracy": 0.4},
        {"low": 0.9, "high": 1.0, "count": 15, "confidence": 0.97, "accuracy": 0.8},
    ]
    axes, counts = draw_reliability(bins, error=0.19).axes
    diagonal, points = axes.get_lines()
    assert np.asarray(diagonal.get_xydata()).tolist() == [[0, 0], [1, 1]]
    assert np.asarray(points.get_xydata()).tolist() == [[0.66, 0.4], [0.97, 0.8]]
    assert [bar.get_height() for bar in counts.patches] == [5, 15]  # type: ignore[attr-defined]
    assert axes.get_title() == "expected calibration error 0.1900"


def test_the_legend_of_the_reliability_plot_hides_nothing() -> None:
    figure = draw_reliability([{"low": 0.3, "high": 0.4, "count": 2, "confidence": 0.35, "accuracy": 1.0}], error=0.65)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert all(axes.get_legend() is None for axes in figure.axes)
    assert all(legend.get_window_extent().y1 < axes.bbox.y0 for axes in figure.axes)
    assert all(tick == int(tick) for tick in figure.axes[1].get_yticks()), "numbers of predictions"


def test_names_in_other_scripts_give_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    save_figure(draw_confusion_matrix([[8, 2], [0, 5]], ["好", "坏"]), BytesIO())
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
