"""Tests of the output directory: figures and tables are complete and have the computed numbers."""

import csv
import json
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from headwise.inspection import build_viewer, compute_head_statistics, draw_measures, draw_received, draw_similarity
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.output_dir import (
    find_schemes,
    plot_learned_parameters,
    select_heads,
    write_figures,
    write_inspection,
)
from headwise.inspection.passages import capture_passages
from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig
from tests.blank_figures import BlankFigure
from tests.inspection.tiny_models import TEXT, build_bert
from tests.short_form import choose_size


@pytest.mark.parametrize("num_models", [1, pytest.param(3, marks=pytest.mark.long)])
def test_figures_of_statistics(num_models: int) -> None:
    rows = [(TEXT,), ("a fine film",)]
    statistics = [compute_head_statistics(build_bert(f"model {seed}", seed=seed), rows) for seed in range(num_models)]
    figures: list[Figure] = [draw_measures(statistics), draw_received(statistics), draw_similarity(statistics)]
    for figure in figures:
        figure.draw_without_rendering()
    distance = np.asarray(figures[0].axes[0].get_images()[0].get_array())
    np.testing.assert_allclose(distance, statistics[0].measures["distance"])


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    statistics = [compute_head_statistics(build_bert("model"), [(TEXT,)])]
    for out in ("a", "b"):
        write_figures([("received", draw_received(statistics))], tmp_path / out)
    for extension in ("png", "svg"):
        first, second = (tmp_path / out / "figures" / f"received.{extension}" for out in ("a", "b"))
        assert first.read_bytes() == second.read_bytes(), extension


def test_the_directory_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.inspection.style.Figure", choose_size(short=BlankFigure, long=Figure))
    models = [build_bert("plain"), build_bert("distance-aware", seed=1, is_distance_aware=True)]
    statistics = [compute_head_statistics(model, [(TEXT,), ("a fine film",)]) for model in models]
    viewer = build_viewer(models, ["a $fine$ film"], statistics=statistics)
    write_inspection(viewer, models, tmp_path)
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names == {
        *("sigmoids", "coefficients", "sorted"),
        *("maps", "average", "distances", "components"),
        *("measures", "distance-shares", "received", "similarity"),
    }
    for name in names:
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        xml.etree.ElementTree.parse(tmp_path / "figures" / f"{name}.svg")
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    row = rows[-1]
    assert (row["model"], row["layer"], row["head"]) == ("distance-aware", "1", "3")
    assert float(row["entropy"]) == pytest.approx(statistics[1].measures["entropy"][1, 3], rel=1e-4)
    assert statistics[1].w is not None
    assert float(row["w"]) == pytest.approx(statistics[1].w[1, 3], rel=1e-4)
    assert rows[0]["w"] == ""
    content = json.loads((tmp_path / "statistics.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(content[0]["similarity"], statistics[0].similarity, atol=1e-5)
    assert (tmp_path / "page.html").is_file()
    assert (tmp_path / "received.csv").read_text(encoding="utf-8").startswith("model,layer,head,bin_1,bin_2,")
    assert (tmp_path / "similarity-2.csv").read_text(encoding="utf-8").startswith("head,0.0,0.1")


def test_selected_heads_range_from_the_lowest_to_the_highest_w() -> None:
    (passage,) = capture_passages(build_bert(is_distance_aware=True), (TEXT,))
    heads = select_heads(passage)
    w = np.stack([layer.w for layer in passage.layers if layer.w is not None])
    values = [w[head] for head in heads]
    assert len(heads) == 4
    assert values == sorted(values)
    assert (values[0], values[-1]) == (w.min(), w.max())


def test_the_parts_of_a_recommender_have_separate_figures() -> None:
    titles = HeadwiseConfig(vocab_size=9, word_dim=4, scheme="distance-aware", heads=2, head_dim=4)
    recommender = HeadwiseForRecommendation(
        RecommenderConfig(titles=titles, scheme="distance-aware", heads=3, head_dim=4)
    )
    model = InspectedModel(name="mind", model=recommender.titles.encoder, tokenizer=None, part_of=recommender)
    parts = find_schemes(model)
    assert {part: [layer.w.numel() for layer in layers] for part, layers in parts.items()} == {
        "titles": [2],
        "clicks": [3],
    }
    names = [name for name, _ in plot_learned_parameters({"mind": [model]})]
    assert names == ["sigmoids-1", "coefficients-1", "sigmoids-2", "coefficients-2", "sorted"]
