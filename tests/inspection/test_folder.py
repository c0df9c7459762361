"""Figures and tables: there, sound, and with the numbers that they are about."""

import csv
import json
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import headwise as hw
from headwise.inspection import (
    build_viewer,
    compute_head_statistics,
    draw_averages,
    draw_coefficients,
    draw_components,
    draw_measures,
    draw_received,
    draw_sigmoids,
    draw_similarity,
    draw_sorted,
)
from headwise.inspection.attention_maps import read
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.output_dir import find_schemes, plot_learned_parameters, telling_heads, write_inspection
from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig
from tests.inspection.small import TEXT, bert


def layers(seed: int = 0, **options: Any) -> list[hw.DistanceAware]:
    torch.manual_seed(seed)
    return [hw.DistanceAware(heads=3, **{"w_std": 0.5, "v_std": 1.0} | options) for _ in range(2)]


def test_the_sigmoids_are_equation_5() -> None:
    own = layers()
    lines = draw_sigmoids(own, reach=4).axes[0].get_lines()[2:]  # two are the axes' crosses
    learned = np.sort(torch.cat([layer.v for layer in own if layer.v is not None]).detach().numpy())
    for line, v in zip(lines, learned, strict=True):
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        np.testing.assert_allclose(y, (1 + np.exp(v)) / (1 + np.exp(v - x)), rtol=1e-5)


def test_layers_without_v_have_no_sigmoid() -> None:
    with pytest.raises(ValueError, match="v"):
        draw_sigmoids(layers(mapping="linear"))


def test_coefficients_go_from_the_lowest_w_to_the_highest() -> None:
    own = layers()
    figure = draw_coefficients(own, tokens=5, most=2)
    shown = [axes.get_images()[0] for axes in figure.axes if axes.get_images()][:2]
    w = torch.cat([layer.w for layer in own]).detach()
    for image, at in zip(shown, (int(w.argmin()), int(w.argmax())), strict=True):
        f = own[at // 3].coefficients(5)[at % 3].detach().numpy()
        expected = [[f[abs(i - j)] for j in range(5)] for i in range(5)]
        np.testing.assert_allclose(np.asarray(image.get_array()), expected, rtol=1e-6)


def test_sorted_values_are_means_over_runs() -> None:
    runs = [layers(seed=seed) for seed in range(4)]
    axes = draw_sorted({"DA": runs}).axes[0]
    bars: list[Any] = axes.containers[0].patches if hasattr(axes.containers[0], "patches") else list(axes.patches)
    expected = np.mean([np.sort(torch.cat([own.w for own in run]).detach().numpy()) for run in runs], axis=0)
    np.testing.assert_allclose([bar.get_height() for bar in bars], expected, rtol=1e-5)


def test_several_models_share_the_axes_of_sorted_values() -> None:
    axes = draw_sorted({"a": [layers()], "b": [layers(seed=1)]}).axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_averaged_maps_and_what_differs() -> None:
    one, other = np.random.default_rng(0).random((2, 6, 20, 20))
    figure = draw_averages({"plain": one, "guided": other}, [f"t{i}" for i in range(20)], most=15)
    images = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes if axes.get_images()][:3]
    mean, guided = one.mean(axis=0)[:15, :15], other.mean(axis=0)[:15, :15]
    for image, expected in zip(images, (mean, guided, guided - mean), strict=True):
        np.testing.assert_allclose(image, expected)


def test_components_are_shared_by_all_models() -> None:
    one, other = np.random.default_rng(0).random((2, 6, 5, 5))
    panels = draw_components({"plain": one, "guided": other}, layers=2).axes[:2]
    points = np.concatenate([np.asarray(axes.collections[0].get_offsets()) for axes in panels])
    whole = np.concatenate([one, other]).reshape(12, -1)
    centred = whole - whole.mean(axis=0)
    _, scale, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(points, axis=0), scale[:2])
    assert panels[0].get_xlim() == panels[1].get_xlim()


@pytest.mark.parametrize("count", [1, 3])
def test_figures_of_a_data_set(count: int) -> None:
    found = [
        compute_head_statistics(bert(f"model {seed}", seed=seed), [(TEXT,), ("a fine film",)]) for seed in range(count)
    ]
    figures: list[Figure] = [draw_measures(found), draw_received(found), draw_similarity(found)]
    for figure in figures:
        figure.draw_without_rendering()
    first = np.asarray(figures[0].axes[0].get_images()[0].get_array())
    np.testing.assert_allclose(first, found[0].measures["distance"])


def test_a_folder_holds_all_of_it(tmp_path: Path) -> None:
    subjects = [bert("as it is"), bert("with distance", seed=1, distance=True)]
    found = [compute_head_statistics(subject, [(TEXT,), ("a fine film",)]) for subject in subjects]
    viewer = build_viewer(subjects, ["a $fine$ film"], statistics=found)
    write_inspection(viewer, subjects, tmp_path)
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    learned, of_text, of_data = (
        "sigmoids coefficients sorted",
        "maps average components",
        "measures received similarity",
    )
    assert names == {*learned.split(), *of_text.split(), *of_data.split()}
    for name in names:
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        xml.etree.ElementTree.parse(tmp_path / "figures" / f"{name}.svg")
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    last = rows[-1]
    assert (last["model"], last["layer"], last["head"]) == ("with distance", "1", "3")
    assert float(last["entropy"]) == pytest.approx(found[1].measures["entropy"][1, 3], rel=1e-4)
    assert found[1].w is not None
    assert float(last["w"]) == pytest.approx(found[1].w[1, 3], rel=1e-4)
    assert rows[0]["w"] == ""
    told = json.loads((tmp_path / "statistics.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(told[0]["similarity"], found[0].similarity, atol=1e-5)
    assert (tmp_path / "page.html").is_file()
    assert (tmp_path / "similarity-2.csv").read_text(encoding="utf-8").startswith("head,0.0,0.1")


def test_heads_that_are_shown_differ_in_w() -> None:
    (reading,) = read(bert(distance=True), (TEXT,))
    chosen = telling_heads(reading)
    w = np.stack([layer.w for layer in reading.layers if layer.w is not None])
    values = [w[place] for place in chosen]
    assert len(chosen) == 4
    assert values == sorted(values)
    assert (values[0], values[-1]) == (w.min(), w.max())


def test_the_parts_of_a_recommender_are_drawn_apart() -> None:
    words = HeadwiseConfig(vocab_size=9, word_dim=4, scheme="distance-aware", heads=2, head_dim=4)
    model = HeadwiseForRecommendation(RecommenderConfig(titles=words, scheme="distance-aware", heads=3, head_dim=4))
    subject = InspectedModel(name="mind", model=model.titles.encoder, tokenizer=None, part_of=model)
    found = find_schemes(subject)
    assert {part: [layer.w.numel() for layer in layers] for part, layers in found.items()} == {
        "titles": [2],
        "clicks": [3],
    }
    names = [name for name, _ in plot_learned_parameters({"mind": [subject]})]
    assert names == ["sigmoids-1", "coefficients-1", "sigmoids-2", "coefficients-2", "sorted"]
