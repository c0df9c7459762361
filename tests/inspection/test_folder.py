"""Figures and tables: there, sound, and with the numbers that they are about."""

import csv
import json
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from headwise.inspection import (
    build_viewer,
    compute_head_statistics,
    draw_measures,
    draw_received,
    draw_similarity,
)
from headwise.inspection.attention_maps import read
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.output_dir import find_schemes, plot_learned_parameters, telling_heads, write_inspection
from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig
from tests.inspection.small import TEXT, bert


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
