"""Tests of the plots of learned parameters."""

from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.inspection import draw_coefficients, draw_distances, draw_sigmoids, draw_sorted


def build_layers(seed: int = 0, **options: Any) -> list[hw.DistanceAware]:
    torch.manual_seed(seed)
    return [hw.DistanceAware(heads=3, **{"w_std": 0.5, "v_std": 1.0} | options) for _ in range(2)]


def test_distances_show_w_v_and_the_coefficients_of_all_heads() -> None:
    layers = build_layers()
    w, v, curves, *_ = draw_distances(layers, max_distance=5).axes
    for axes, name in ((w, "w"), (v, "v")):
        expected = torch.stack([getattr(layer, name) for layer in layers]).detach()
        np.testing.assert_allclose(np.asarray(axes.get_images()[0].get_array()), expected)
    assert len(curves.get_lines()) == 6
    last_w, last_v = layers[1].w[2].item(), layers[1].v[2].item()  # type: ignore[index]
    f = [(1 + np.exp(last_v)) / (1 + np.exp(last_v - last_w * distance)) for distance in range(6)]
    np.testing.assert_allclose(np.asarray(curves.get_lines()[5].get_ydata()), f, rtol=1e-6)


@pytest.mark.parametrize("mapping", ["clip", "linear"])
def test_mappings_without_v_have_no_panel_for_it(mapping: str) -> None:
    w, curves, *_ = draw_distances([hw.DistanceAware(heads=2, mapping=mapping)]).axes  # type: ignore[arg-type]
    assert w.get_title().startswith("w")
    assert curves.get_title().startswith("f")


def test_sigmoids_are_equation_5() -> None:
    layers = build_layers()
    lines = draw_sigmoids(layers, max_weighted_distance=4).axes[0].get_lines()[2:]  # after the lines at R = 0, f = 1
    values = np.sort(torch.cat([layer.v for layer in layers if layer.v is not None]).detach().numpy())
    for line, v in zip(lines, values, strict=True):
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        np.testing.assert_allclose(y, (1 + np.exp(v)) / (1 + np.exp(v - x)), rtol=1e-5)


def test_sigmoids_require_v() -> None:
    with pytest.raises(ValueError, match="layers have no v"):
        draw_sigmoids(build_layers(mapping="linear"))


def test_coefficients_range_from_the_lowest_to_the_highest_w() -> None:
    layers = build_layers()
    figure = draw_coefficients(layers, num_tokens=5, max_heads=2)
    images = [axes.get_images()[0] for axes in figure.axes if axes.get_images()][:2]
    w = torch.cat([layer.w for layer in layers]).detach()
    for image, index in zip(images, (int(w.argmin()), int(w.argmax())), strict=True):
        f = layers[index // 3].coefficients(5)[index % 3].detach().numpy()
        expected = [[f[abs(i - j)] for j in range(5)] for i in range(5)]
        np.testing.assert_allclose(np.asarray(image.get_array()), expected, rtol=1e-6)


def test_sorted_values_are_means_over_runs() -> None:
    runs = [build_layers(seed=seed) for seed in range(4)]
    axes = draw_sorted({"DA": runs}).axes[0]
    bars: list[Any] = axes.containers[0].patches if hasattr(axes.containers[0], "patches") else list(axes.patches)
    expected = np.mean([np.sort(torch.cat([layer.w for layer in run]).detach().numpy()) for run in runs], axis=0)
    np.testing.assert_allclose([bar.get_height() for bar in bars], expected, rtol=1e-5)


def test_models_share_the_axes_of_sorted_values() -> None:
    axes = draw_sorted({"a": [build_layers()], "b": [build_layers(seed=1)]}).axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
