"""The page in a real browser: no errors, right numbers, and it does what keys, clicks and pointers ask for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.inspection import InspectedModel, Viewer, build_viewer, compute_head_statistics
from headwise.inspection.viewer import Example
from tests.inspection.conftest import Opened
from tests.inspection.pages import made_up, page_of
from tests.inspection.small import TEXT, bert
from tests.inspection.test_viewer import HOSTILE

TEXTS = [TEXT, "a fine film", HOSTILE]
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def two() -> Viewer:
    """Two models, one with distance, three texts, and statistics."""
    models = [bert("as it is"), bert("with distance", seed=1, distance=True)]
    rows = [(TEXT,), ("a fine film .",), ("dull actors !",)]
    return build_viewer(
        models, TEXTS, labels=["praise", None, HOSTILE], statistics=[compute_head_statistics(x, rows) for x in models]
    )


@pytest.fixture(scope="module")
def path(two: Viewer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "two.html"
    two.write(file)
    return file


#: When the browser painted something, and all heads were there, in milliseconds.
FIRST_PAINT = """() => {
    const [painted] = performance.getEntriesByName('first-contentful-paint');
    const [heads] = performance.getEntriesByName('headwise:heads');
    return painted && heads ? Math.max(painted.startTime, heads.startTime) : null;
}"""


def first_paint(page: Any) -> float:
    """Milliseconds; asked for again and again, as a browser may forget a promise that nobody else holds."""
    while (found := page.evaluate(FIRST_PAINT)) is None:
        page.wait_for_timeout(20)
    return float(found)


def state(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("({...headwise.state})")
    return found


def test_every_number_is_the_readings(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path)
    for text, example in enumerate(two.examples[:2]):
        for model, reading in enumerate(example.readings):
            for layer, own in enumerate(reading.layers):
                for head in range(4):
                    shape = own.cells.shape[1]
                    found = page.evaluate(
                        """async ([text, model, layer, head, n]) => {
                            const row = [];
                            for (let i = 0; i < n; i++) for (let j = 0; j < n; j++)
                                row.push(await headwise.cell(text, model, layer, head, i, j));
                            return row;
                        }""",
                        [text, model, layer, head, shape],
                    )
                    np.testing.assert_allclose(np.reshape(found, (shape, shape)), own.map(head), rtol=1e-3, atol=1e-6)


def test_hovering_over_a_cell_tells_its_weight_in_both_models(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path, "#layer=1&head=2")
    place = page.evaluate("document.querySelector('.heatmap').place")
    i, j = 4, 6
    x, y = (place["margin"] + (at + 0.5) * place["cell"] for at in (j, i))
    page.locator(".heatmap").first.hover(position={"x": x, "y": y})
    tokens = two.examples[0].readings[0].tokens
    told = page.locator("#readout").inner_text()
    assert told.startswith(f"{tokens[i]} → {tokens[j]}: as it is: ")
    weights = [float(part.split(": ")[-1]) for part in told.split(", ")[-2:]]
    expected = [reading.layers[1].map(2)[i, j] for reading in two.examples[0].readings]
    np.testing.assert_allclose(weights, expected, atol=6e-4)
    assert page.locator("#tip").is_visible()
    page.mouse.move(5, 5)
    assert not page.locator("#tip").is_visible()


def test_a_click_opens_a_head_and_the_address_leads_there(path: Path, opened: Opened) -> None:
    page = opened(path)
    page.locator("#grids .head[data-layer='1'][data-head='3']").first.click()
    page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 1, head 3'")
    assert "layer=1&head=3" in page.url
    again = opened(path, page.url.partition(".html")[2])
    assert again.locator("#head-title").inner_text() == "Layer 1, head 3"
    assert again.locator("#grids .head.chosen").count() == 2  # one in each model


@pytest.mark.parametrize("link", ["#layer=99&head=-1&token=x&sort=nonsense&text=77&threshold=2", "#", "#%%%"])
def test_an_address_that_leads_nowhere_leads_to_the_start(link: str, path: Path, opened: Opened) -> None:
    assert opened(path, link).locator("#head-title").inner_text() == "Layer 0, head 0"


def test_keys(path: Path, opened: Opened) -> None:
    page = opened(path)
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
        found = state(page)
        assert {name: found[name] for name in expected} == expected, key
    page.keyboard.press("?")
    assert page.locator("dialog").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_a_chosen_token_tells_what_it_looks_at(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path, "#layer=0&head=1")
    page.locator("#tokens span").nth(3).click()
    weights = two.examples[0].readings[0].layers[0].map(1)[3]
    best = two.examples[0].readings[0].tokens[int(weights.argmax())]
    page.wait_for_function("() => document.getElementById('readout').textContent.includes('looks at')")
    told = page.locator("#readout").inner_text()
    assert told.startswith("and (3) looks at as it is: ")
    assert f"{best} {weights.max():.3f}" in told
    assert "token=3" in page.url


def test_heads_are_sorted(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path)
    reading = two.examples[0].readings
    for name, values in (
        ("distance", np.stack([layer.distance for layer in reading[0].layers])),
        ("entropy", np.stack([layer.entropy for layer in reading[0].layers])),
        ("w", np.stack([layer.w for layer in reading[1].layers if layer.w is not None])),
    ):
        page.locator("#sort").select_option(name)
        page.wait_for_function("() => document.querySelectorAll('.grid.sorted .head').length === 16")
        heads = page.eval_on_selector(
            ".grid.sorted", "g => [...g.children].map(b => [+b.dataset.layer, +b.dataset.head])"
        )
        found = [values[layer, head] for layer, head in heads]
        assert found == sorted(found), name


def test_one_layer_can_be_chosen(path: Path, opened: Opened) -> None:
    page = opened(path)
    page.locator("#only").select_option("1")
    page.wait_for_function("() => document.querySelectorAll('.head').length === 8")
    assert state(page)["layer"] == 1


def test_weights_below_the_threshold_are_hidden(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path, "#threshold=0.2")
    lightest = page.evaluate(
        """() => {
            const canvas = document.querySelector('.heatmap'), {margin, cell, side} = canvas.place;
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height), found = [];
            const middle = (at) => Math.floor(margin + (at + .5) * cell);
            for (let i = 0; i < side; i++) for (let j = 0; j < side; j++) {
                const at = 4 * (middle(i) * canvas.width + middle(j));
                found.push([...data.slice(at, at + 3)].join() === '253,253,252');
            }
            return found;
        }"""
    )
    weights = two.examples[0].readings[0].layers[0].map(0)
    clear = np.abs(weights - 0.2) > 1e-3
    np.testing.assert_array_equal(np.reshape(lightest, weights.shape)[clear], (weights < 0.2)[clear])


def test_two_models_and_their_difference(two: Viewer, path: Path, opened: Opened, artefacts: Path) -> None:
    page = opened(path, "#view=difference&layer=1&head=1&a=1&b=0")
    assert page.locator(".heatmap").count() == 3
    place = page.evaluate("document.querySelectorAll('.heatmap')[2].place")
    page.locator(".heatmap").nth(2).hover(position={"x": place["margin"] + 3, "y": place["margin"] + 3})
    told = page.locator("#readout").inner_text()
    one, other = (two.examples[0].readings[model].layers[1].map(1)[0, 0] for model in (1, 0))
    shown = float(told.split("difference: ")[1].replace("−", "-"))
    assert shown == pytest.approx(one - other, abs=6e-4)
    page.screenshot(path=artefacts / "difference.png", full_page=True)


def test_predictions_stand_beside_the_text(two: Viewer, path: Path, opened: Opened) -> None:
    told = opened(path).locator("#answers").inner_text()
    for reading in two.examples[0].readings:
        assert reading.prediction is not None
        for label, share in reading.prediction.labels:
            assert label in told
            assert f"{100 * share:.{1 if share < 0.1 else 0}f}%" in told


def test_a_hostile_text_is_shown_and_never_run(path: Path, opened: Opened) -> None:
    page = opened(path, "#text=2")
    assert page.evaluate("window.hacked") is None
    assert "script" in page.locator("#tokens").inner_text()
    assert page.locator("#about").inner_text().endswith(f"its label: {HOSTILE}")
    assert page.locator("main img, main script").count() == 0


def test_statistics_lead_to_heads(two: Viewer, path: Path, opened: Opened) -> None:
    page = opened(path)
    page.locator("#measure").select_option("entropy")
    page.wait_for_function("() => document.getElementById('measure-about').textContent.includes('bits')")
    page.wait_for_function("() => document.querySelectorAll('.numbers button').length === 16")
    button = page.locator(".numbers button[data-layer='1'][data-head='2']").first
    assert float(button.inner_text()) == pytest.approx(two.statistics[0].measures["entropy"][1, 2], abs=0.006)
    button.click()
    page.wait_for_function("() => document.getElementById('head-title').textContent === 'Layer 1, head 2'")
    assert page.locator("svg.profile polyline").count() == 2
    page.locator(".matrix").first.hover(position={"x": 2, "y": 2})
    assert "1.00" in page.locator("#alike").inner_text()


@pytest.mark.parametrize(
    ("name", "options"),
    [("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", PHONE), ("print", {"color_scheme": "dark"})],
)
def test_how_it_looks(name: str, options: dict[str, Any], path: Path, opened: Opened, artefacts: Path) -> None:
    page = opened(path, "#layer=1&head=1&token=4", **options)
    if name == "print":
        page.emulate_media(media="print")
    page.wait_for_timeout(300)
    page.screenshot(path=artefacts / f"{name}.png", full_page=True)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"dark": "rgb(21, 24, 28)", "print": "rgb(255, 255, 255)"}.get(name, "rgb(253, 253, 252)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    if name == "print":
        assert not page.locator("nav.controls").is_visible()
    elif name != "phone":
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_four_models(opened: Opened, artefacts: Path, tmp_path: Path) -> None:
    names = ("unguided", "MDG", "PDG", "both")
    viewer = build_viewer([bert(name, seed=seed) for seed, name in enumerate(names)], [TEXT])
    viewer.write(tmp_path / "four.html")
    page = opened(tmp_path / "four.html", "#layer=1&head=0")
    assert page.locator(".heatmap").count() == 4
    assert page.locator(".grid").count() == 4
    page.screenshot(path=artefacts / "four.png", full_page=True)


def test_4096_tokens_of_144_heads(opened: Opened, artefacts: Path, tmp_path: Path) -> None:
    reading = made_up(4096, layers=12, heads=12)
    file = tmp_path / "long.html"
    page_of(reading).write(file)
    assert file.stat().st_size <= 40 * 2**20
    for _ in range(3):  # the machine may be busy with something else
        page = opened(file, "#layer=7&head=3")
        milliseconds = first_paint(page)
        if milliseconds < 2000:
            break
    assert milliseconds < 2000
    page.screenshot(path=artefacts / "long.png", full_page=True)
    layer = reading.layers[7]
    assert layer.keys is not None
    assert layer.weights is not None
    assert layer.strongest is not None
    assert page.evaluate("headwise.cell(0, 0, 7, 3, 100, 200)") == pytest.approx(layer.map(3)[100, 200], rel=1e-3)
    found = page.evaluate("headwise.looks(0, 0, 7, 3, 4000)")
    weights = np.square(layer.weights[3, 4000] / 255.0) * layer.strongest[3]
    np.testing.assert_allclose([weight for _, weight in found], weights[weights > 0], rtol=1e-3)
    assert sorted(key for key, _ in found) == sorted(layer.keys[3, 4000][weights > 0].tolist())


def test_in_a_notebook(two: Viewer, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><body>{two._repr_html_()}</body>", encoding="utf-8")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    inside = page.frame_locator("iframe")
    inside.locator("#grids .head[data-layer='1'][data-head='1']").first.click()
    inside.locator("#head-title", has_text="Layer 1, head 1").wait_for()
    page.close()
    assert not errors


def test_a_model_without_answers_and_a_single_token(opened: Opened, tmp_path: Path) -> None:
    subject = bert()
    bare = InspectedModel(name="bare", model=subject.model.base_model, tokenizer=subject.tokenizer)  # type: ignore[arg-type]
    build_viewer([bare], ["film"]).write(tmp_path / "bare.html")
    assert opened(tmp_path / "bare.html").locator("#answers").inner_text() == ""
    reading = made_up(1, layers=1, heads=1)
    Viewer("one", ("one",), (Example("one", None, (reading,)),)).write(tmp_path / "one.html")
    assert opened(tmp_path / "one.html").locator(".heatmap").count() == 1
