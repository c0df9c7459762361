"""Tests of the interactive page in a browser: no errors, correct numbers, and working controls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.inspection import InspectedModel, Viewer, build_viewer, compute_head_statistics
from headwise.inspection.encoder_decoder import PARTS
from headwise.inspection.viewer import Example
from tests.inspection.conftest import OpenPage
from tests.inspection.random_viewers import make_viewer, random_passage
from tests.inspection.test_encoder_decoder import TARGET
from tests.inspection.test_encoder_decoder import build as build_encoder_decoder
from tests.inspection.test_viewer import HTML_TEXT
from tests.inspection.tiny_models import TEXT, build_bert
from tests.short_form import choose_size, keep_short

pytestmark = pytest.mark.long  # a browser; test_page.py opens a page in the short form

TEXTS = [TEXT, "a fine film", HTML_TEXT]
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def viewer() -> Viewer:
    """Two models, the second one distance-aware, three texts, and statistics."""
    models = [build_bert("plain"), build_bert("distance-aware", seed=1, is_distance_aware=True)]
    rows = [(TEXT,), ("a fine film .",), ("dull actors !",)]
    statistics = [compute_head_statistics(model, rows) for model in models]
    return build_viewer(models, TEXTS, labels=["positive", None, HTML_TEXT], statistics=statistics)


@pytest.fixture(scope="module")
def path(viewer: Viewer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "page.html"
    viewer.write(file)
    return file


#: Whether something was painted and all heads were drawn.
IS_PAINTED = """() => ['first-contentful-paint', 'headwise:heads'].every(
    name => performance.getEntriesByName(name).length > 0
)"""


#: A fragment in which every value is out of range.
INVALID = "#layer=99&head=-1&token=x&sort=nonsense&text=77&threshold=2"


def get_state(page: Any) -> dict[str, Any]:
    state: dict[str, Any] = page.evaluate("({...headwise.state})")
    return state


def test_cells_have_the_captured_weights(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    for text, example in enumerate(viewer.examples[:2]):
        for model, passage in enumerate(example.passages):
            for number, layer in enumerate(passage.layers):
                for head in range(4):
                    n = layer.cells.shape[1]
                    weights = page.evaluate(
                        """async ([text, model, layer, head, n]) => {
                            const weights = [];
                            for (let i = 0; i < n; i++) for (let j = 0; j < n; j++)
                                weights.push(await headwise.cellWeight(text, model, layer, head, i, j));
                            return weights;
                        }""",
                        [text, model, number, head, n],
                    )
                    expected = layer.dequantize(head)
                    np.testing.assert_allclose(np.reshape(weights, (n, n)), expected, rtol=1e-3, atol=1e-6)


def test_hovering_over_a_cell_shows_its_weight_in_both_models(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path, "#layer=1&head=2")
    geometry = page.evaluate("document.querySelector('.heatmap').geometry")
    i, j = 4, 6
    x, y = geometry["left"] + (j + 0.5) * geometry["cellWidth"], geometry["top"] + (i + 0.5) * geometry["cellHeight"]
    page.locator(".heatmap").first.hover(position={"x": x, "y": y})
    tokens = viewer.examples[0].passages[0].tokens
    readout = page.locator("#readout").inner_text()
    assert readout.startswith(f"{tokens[i]} → {tokens[j]}: plain: ")
    weights = [float(part.split(": ")[-1]) for part in readout.split(", ")[-2:]]
    expected = [passage.layers[1].dequantize(2)[i, j] for passage in viewer.examples[0].passages]
    np.testing.assert_allclose(weights, expected, atol=6e-4)
    assert page.locator("#tooltip").is_visible()
    page.mouse.move(5, 5)
    assert not page.locator("#tooltip").is_visible()


def test_a_click_selects_a_head_and_updates_the_url(path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    page.locator("#grids .head[data-layer='1'][data-head='3']").first.click()
    page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 1, head 3'")
    assert "layer=1&head=3" in page.url
    reopened = open_page(path, page.url.partition(".html")[2])
    assert reopened.locator("#head-title").inner_text() == "Layer 1, head 3"
    assert reopened.locator("#grids .head.selected").count() == 2  # one for each model


@pytest.mark.parametrize("fragment", keep_short((INVALID, "#", "#%%%"), INVALID))
def test_invalid_urls_show_the_default_view(fragment: str, path: Path, open_page: OpenPage) -> None:
    assert open_page(path, fragment).locator("#head-title").inner_text() == "Layer 0, head 0"


def test_keyboard_shortcuts(path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    for key, expected in (
        ("ArrowRight", {"head": 1}),
        ("ArrowDown", {"layer": 1, "head": 1}),
        ("ArrowLeft", {"layer": 1, "head": 0}),
        ("ArrowUp", {"layer": 0}),
        ("j", {"token": 0}),
        ("j", {"token": 1}),
        ("k", {"token": 0}),
        ("Escape", {"token": None}),
        ("s", {"sort": "distance"}),
        ("d", {"view": "difference"}),
        ("d", {"view": "all"}),
        ("]", {"text": 1}),
        ("[", {"text": 0}),
        ("t", {"theme": "dark"}),
    ):
        page.keyboard.press(key)
        state = get_state(page)
        assert {name: state[name] for name in expected} == expected, key
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_a_selected_token_shows_its_strongest_keys(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path, "#layer=0&head=1")
    page.locator("#tokens span").nth(3).click()
    passage = viewer.examples[0].passages[0]
    weights = passage.layers[0].dequantize(1)[3]
    page.wait_for_function("() => document.getElementById('readout').textContent.includes('attends to')")
    readout = page.locator("#readout").inner_text()
    assert readout.startswith("and (3) attends to plain: ")
    assert f"{passage.tokens[int(weights.argmax())]} {weights.max():.3f}" in readout
    assert "token=3" in page.url


def test_heads_are_sorted(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    plain, distance_aware = viewer.examples[0].passages
    for name, values in (
        ("distance", np.stack([layer.distance for layer in plain.layers if layer.distance is not None])),
        ("entropy", np.stack([layer.entropy for layer in plain.layers])),
        ("w", np.stack([layer.w for layer in distance_aware.layers if layer.w is not None])),
    ):
        page.locator("#sort").select_option(name)
        page.wait_for_function("() => document.querySelectorAll('.grid.sorted .head').length === 16")
        heads = page.eval_on_selector(
            ".grid.sorted", "g => [...g.children].map(b => [+b.dataset.layer, +b.dataset.head])"
        )
        order = [values[layer, head] for layer, head in heads]
        assert order == sorted(order), name


def test_the_layer_filter(path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    page.locator("#layer-filter").select_option("1")
    page.wait_for_function("() => document.querySelectorAll('.head').length === 8")
    assert get_state(page)["layer"] == 1
    assert "layerFilter=1" in page.url


def test_weights_below_the_threshold_are_hidden(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path, "#threshold=0.2")
    is_hidden = page.evaluate(
        """() => {
            const canvas = document.querySelector('.heatmap'), g = canvas.geometry;
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height), isHidden = [];
            for (let i = 0; i < g.numRows; i++) for (let j = 0; j < g.numColumns; j++) {
                const [y, x] = [g.top + (i + .5) * g.cellHeight, g.left + (j + .5) * g.cellWidth].map(Math.floor);
                const index = 4 * (y * canvas.width + x);
                isHidden.push([...data.slice(index, index + 3)].join() === '253,253,252');
            }
            return isHidden;
        }"""
    )
    weights = viewer.examples[0].passages[0].layers[0].dequantize(0)
    is_clear = np.abs(weights - 0.2) > 1e-3
    np.testing.assert_array_equal(np.reshape(is_hidden, weights.shape)[is_clear], (weights < 0.2)[is_clear])


def test_the_difference_of_two_models(viewer: Viewer, path: Path, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(path, "#view=difference&layer=1&head=1&a=1&b=0")
    assert page.locator(".heatmap").count() == 3
    geometry = page.evaluate("document.querySelectorAll('.heatmap')[2].geometry")
    page.locator(".heatmap").nth(2).hover(position={"x": geometry["left"] + 3, "y": geometry["top"] + 3})
    readout = page.locator("#readout").inner_text()
    a, b = (viewer.examples[0].passages[model].layers[1].dequantize(1)[0, 0] for model in (1, 0))
    assert float(readout.split("difference: ")[1].replace("−", "-")) == pytest.approx(a - b, abs=6e-4)
    page.screenshot(path=artefacts / "difference.png", full_page=True)


def test_predictions_are_shown(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    predictions = open_page(path).locator("#predictions").inner_text()
    for passage in viewer.examples[0].passages:
        assert passage.prediction is not None
        for label, probability in passage.prediction.labels:
            assert label in predictions
            assert f"{100 * probability:.{1 if probability < 0.1 else 0}f}%" in predictions


def test_html_in_texts_and_labels_is_escaped(path: Path, open_page: OpenPage) -> None:
    page = open_page(path, "#text=2")
    assert page.evaluate("window.hacked") is None
    assert "script" in page.locator("#tokens").inner_text()
    assert page.locator("#text-info").inner_text().endswith(f"label: {HTML_TEXT}")
    assert page.locator("main img, main script").count() == 0


def test_statistics_are_shown_and_select_heads(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path)
    page.locator("#measure").select_option("entropy")
    page.wait_for_function("() => document.getElementById('measure-info').textContent.includes('bits')")
    page.wait_for_function("() => document.querySelectorAll('.measure-grid button').length === 16")
    button = page.locator(".measure-grid button[data-layer='1'][data-head='2']").first
    assert float(button.inner_text()) == pytest.approx(viewer.statistics[0].measures["entropy"][1, 2], abs=0.006)
    button.click()
    page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 1, head 2'")
    assert page.locator("svg.received polyline").count() == 2
    page.locator(".matrix").first.hover(position={"x": 2, "y": 2})
    assert "1.00" in page.locator("#similarity-readout").inner_text()


@pytest.mark.parametrize(
    ("name", "options"),
    [("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", PHONE), ("print", {"color_scheme": "dark"})],
)
def test_themes_and_sizes(name: str, options: dict[str, Any], path: Path, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(path, "#layer=1&head=1&token=4", **options)
    if name == "print":
        page.emulate_media(media="print")
    if choose_size(short=False, long=True):
        page.screenshot(path=artefacts / f"{name}.png", full_page=True)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"dark": "rgb(21, 24, 28)", "print": "rgb(255, 255, 255)"}.get(name, "rgb(253, 253, 252)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls horizontally"
    if name == "print":
        assert not page.locator("nav.controls").is_visible()
    elif name != "phone":
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background


@pytest.mark.long  # two models have the same code
def test_four_models(open_page: OpenPage, artefacts: Path, tmp_path: Path) -> None:
    names = ("unguided", "MDG", "PDG", "both")
    viewer = build_viewer([build_bert(name, seed=seed) for seed, name in enumerate(names)], [TEXT])
    viewer.write(tmp_path / "four.html")
    page = open_page(tmp_path / "four.html", "#layer=1&head=0")
    assert page.locator(".heatmap").count() == 4
    assert page.locator(".grid").count() == 4
    page.screenshot(path=artefacts / "four.png", full_page=True)


@pytest.mark.long
def test_4096_tokens_and_many_heads(open_page: OpenPage, artefacts: Path, tmp_path: Path) -> None:
    layers, heads = 12, 12
    passage = random_passage(4096, layers=layers, heads=heads)
    file = tmp_path / "long.html"
    make_viewer(passage).write(file)
    assert file.stat().st_size <= 40 * 2**20 * layers * heads / 144
    page = open_page(file, "#layer=7&head=3")
    page.wait_for_function(IS_PAINTED)
    page.screenshot(path=artefacts / "long.png", full_page=True)
    layer = passage.layers[7]
    assert layer.top_keys is not None
    assert layer.top_weights is not None
    assert layer.top_weight_max is not None
    weight = page.evaluate("headwise.cellWeight(0, 0, 7, 3, 100, 200)")
    assert weight == pytest.approx(layer.dequantize(3)[100, 200], rel=1e-3)
    entries = page.evaluate("headwise.attendedKeys(0, 0, 7, 3, 4000)")
    weights = np.square(layer.top_weights[3, 4000] / 255.0) * layer.top_weight_max[3]
    np.testing.assert_allclose([weight for _, weight in entries], weights[weights > 0], rtol=1e-3)
    assert sorted(key for key, _ in entries) == sorted(layer.top_keys[3, 4000][weights > 0].tolist())


def test_parts_of_a_long_map_are_shown_token_by_token(open_page: OpenPage, tmp_path: Path) -> None:
    passage = random_passage(4096, layers=1, heads=2)
    layer = passage.layers[0]
    assert layer.top_keys is not None
    make_viewer(passage).write(tmp_path / "long.html")
    page = open_page(tmp_path / "long.html", "#layer=0&head=1&token=3000&key=700")
    assert "Queries 2,984–3,031, keys 684–731" in page.locator(".views.long").inner_text()
    row, key = next((query, key) for query in range(2984, 3032) for key in layer.top_keys[1, query] if 684 <= key < 732)
    geometry = page.evaluate("document.querySelector('.zoom').geometry")
    x = geometry["left"] + (key - 684 + 0.5) * geometry["cellWidth"]
    y = geometry["top"] + (row - 2984 + 0.5) * geometry["cellHeight"]
    page.locator(".zoom").hover(position={"x": float(x), "y": float(y)})
    assert page.locator("#tooltip").inner_text().startswith(f"word{row % 997} ({row}) → word{key % 997} ({key})")
    assert "not among" not in page.locator("#tooltip").inner_text()
    geometry = page.evaluate("document.querySelector('.heatmap').geometry")
    page.locator(".heatmap").first.click(position={"x": geometry["left"] + 1, "y": geometry["top"] + 1})
    page.wait_for_function("() => document.querySelector('.views.long').innerText.includes('Queries 0–47, keys 0–47')")
    assert page.locator("#passage-range").inner_text() == "tokens 1 to 1,024 of 4,096"
    page.locator("#next-passage").click()
    assert page.locator("#tokens span").first.inner_text() == "word27"
    assert page.locator("#tokens span").count() == 1024


def test_attention_by_distance(viewer: Viewer, path: Path, open_page: OpenPage) -> None:
    page = open_page(path, "#layer=1&head=2")
    titles = page.locator("#distance-chart rect title").all_text_contents()
    plain, distance_aware = (passage.layers[1].distance_shares for passage in viewer.examples[0].passages)
    assert plain is not None
    assert distance_aware is not None
    assert len(titles) == 2 * plain.shape[1] == 2 * 11
    assert titles[0].startswith("9–16 tokens before: ")
    for title, share in zip(titles, [*plain[2], *distance_aware[2]], strict=True):
        assert float(title.rpartition(": ")[2].rstrip("%")) == pytest.approx(100 * share, abs=0.6)
    assert page.locator("#all-distances rect").count() > 0
    page.locator(".distance-map").first.click(position={"x": 100, "y": 4})
    page.wait_for_function("() => document.getElementById('distances-title').textContent === 'Layer 0, head 0'")
    assert get_state(page)["layer"] == 0


def test_encoder_decoder_models(open_page: OpenPage, artefacts: Path, tmp_path: Path) -> None:
    viewer = build_viewer([build_encoder_decoder("bart")], [TEXT, "a fine film"], targets=[TARGET, "dull actors"])
    viewer.write(tmp_path / "bart.html")
    page = open_page(tmp_path / "bart.html")
    assert page.locator("#part option").all_text_contents() == list(PARTS.values())
    assert page.locator("#text option").count() == 2
    page.keyboard.press("p")
    page.keyboard.press("p")
    page.wait_for_function("() => document.getElementById('head-title').textContent.includes('cross-attention')")
    assert get_state(page)["text"] == 2
    assert not page.locator("#distances").is_visible(), "source and target have no common positions"
    assert page.locator("#sort option").all_text_contents() == ["layer", "entropy"]
    cross = viewer.examples[2].passages[0]
    assert cross.key_tokens is not None
    page.locator("#tokens span").nth(3).click()
    page.wait_for_function("() => document.getElementById('readout').textContent.includes('attends to')")
    weights = cross.layers[0].dequantize(0)[3]
    best = int(weights.argmax())
    assert (
        f"{cross.tokens[3]} (3) attends to {cross.key_tokens[best]} {weights[best]:.3f}"
        in page.locator("#readout").inner_text()
    )
    tinted = page.locator(f"#source-tokens [data-key='{best}']")
    assert tinted.evaluate("span => span.style.background") == "rgb(8, 48, 107)"
    assert page.locator("#predictions").inner_text().endswith(TARGET)
    page.screenshot(path=artefacts / "cross-attention.png", full_page=True)
    page.keyboard.press("]")
    page.wait_for_function("() => document.getElementById('text-info').textContent.startsWith('4 target tokens')")
    assert get_state(page)["text"] == 5, "the same part of the next text"
    page.locator("#part").select_option("3")
    page.wait_for_function("() => document.getElementById('head-title').textContent.includes('encoder')")
    assert page.locator("#distances").is_visible()


def test_the_page_works_in_a_notebook(viewer: Viewer, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{viewer._repr_html_()}</body>", encoding="utf-8")
    page = browser.new_page()
    page.set_default_timeout(0)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#grids .head[data-layer='1'][data-head='1']").first.click()
    frame.locator("#head-title", has_text="Layer 1, head 1").wait_for()
    page.close()
    assert not errors


def test_a_model_without_classifier_and_a_text_of_one_token(open_page: OpenPage, tmp_path: Path) -> None:
    classifier = build_bert()
    encoder = InspectedModel(
        name="encoder",
        model=classifier.model.base_model,  # type: ignore[arg-type]
        tokenizer=classifier.tokenizer,
    )
    build_viewer([encoder], ["film"]).write(tmp_path / "encoder.html")
    assert open_page(tmp_path / "encoder.html").locator("#predictions").inner_text() == ""
    passage = random_passage(1, layers=1, heads=1)
    Viewer("one", ("one",), (Example("one", None, (passage,)),)).write(tmp_path / "one.html")
    assert open_page(tmp_path / "one.html").locator(".heatmap").count() == 1
