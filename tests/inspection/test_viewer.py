"""The page as a file: all of it inside, small, escaped, and its bytes are the maps."""

import base64
import hashlib
import json
import re
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.errors import UserError
from headwise.inspection import InspectedModel, build_viewer, compute_head_statistics
from headwise.inspection.viewer import THUMB, thumbs
from tests.inspection.pages import made_up, page_of
from tests.inspection.small import TEXT, bert, ours

HOSTILE = "</script><script>window.hacked = 1</script> \"a\" 'b' & <img src=x onerror=window.hacked=1> \u2028 <!--"


def about(html: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="about-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(found)


def unpacked(html: str, name: str) -> bytes:
    (found,) = re.findall(rf'id="{name}">([A-Za-z0-9+/=]*)</script>', html)
    return zlib.decompress(base64.b64decode(found))


def test_maps_in_the_page_are_the_readings() -> None:
    viewer = build_viewer([bert(), bert("other", seed=1)], [TEXT, "a fine film"])
    html = viewer.html()
    for text, example in enumerate(viewer.examples):
        told = about(html)["texts"][text]
        assert told["tokens"] == list(example.readings[0].tokens)
        for model, reading in enumerate(example.readings):
            for number, layer in enumerate(reading.layers):
                cells = np.frombuffer(unpacked(html, f"cells-{text}-{model}-{number}"), np.uint8)
                np.testing.assert_array_equal(cells.reshape(layer.cells.shape), layer.cells)
                np.testing.assert_allclose(told["models"][model]["largest"][number], layer.largest, rtol=1e-4)
                np.testing.assert_allclose(told["models"][model]["distance"][number], layer.distance, rtol=1e-4)


def test_long_texts_bring_their_strongest_keys() -> None:
    reading = made_up(600, layers=1, heads=2)
    html = page_of(reading).html()
    layer = reading.layers[0]
    assert layer.keys is not None
    assert about(html)["texts"][0]["size"] == 3
    keys = np.frombuffer(unpacked(html, "keys-0-0-0"), "<u2")
    np.testing.assert_array_equal(keys.reshape(layer.keys.shape), layer.keys)


def test_it_is_small(tmp_path: Path) -> None:
    page_of(made_up(128, layers=12, heads=12)).write(tmp_path / "short.html")
    assert (tmp_path / "short.html").stat().st_size < 5 * 2**20


def test_it_needs_nothing_else_and_only_its_own_script_may_run() -> None:
    html = build_viewer([bert()], [TEXT]).html()
    assert not re.search(r"<(link|iframe|img)\b", html)
    assert not re.search(r"""(src|href)\s*=""", html.split('id="about-data"')[0])
    assert set(re.findall(r"https?://[^\s\"']+", html)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_what_looks_like_html_is_text() -> None:
    subject = bert()
    hostile = InspectedModel(name=HOSTILE, model=subject.model, tokenizer=subject.tokenizer)
    html = build_viewer([hostile], [HOSTILE], labels=[HOSTILE]).html()
    assert "<script>window" not in html
    assert "<img" not in html
    told = about(html)
    assert told["models"][0]["name"] == HOSTILE
    assert told["texts"][0]["label"] == HOSTILE


def test_in_a_notebook_it_displays_itself_in_a_frame_of_its_own() -> None:
    viewer = build_viewer([bert()], [TEXT])
    frame = viewer._repr_html_()
    (inside,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert unescape(inside) == viewer.html()
    assert 'sandbox="allow-scripts"' in frame


def test_statistics_are_on_the_page() -> None:
    subject = bert()
    found = compute_head_statistics(subject, [(TEXT,), ("a fine film",)])
    html = build_viewer([subject], [TEXT], statistics=[found]).html()
    told = about(html)["statistics"][0]
    np.testing.assert_allclose(told["measures"]["entropy"], found.measures["entropy"], rtol=1e-4)
    alike = np.frombuffer(unpacked(html, "similarity-0"), np.uint8).reshape(8, 8) / 127 - 1
    np.testing.assert_allclose(alike, found.similarity, atol=0.005)


def test_small_pictures_show_the_strongest() -> None:
    cells = np.zeros((1, 100, 100), dtype=np.uint8)
    cells[0, 57, 3] = 200
    small = thumbs(cells)
    assert small.shape == (1, THUMB, THUMB)
    assert small.max() == 200
    assert (small > 0).sum() == 1


@pytest.mark.parametrize(
    ("subjects", "texts", "told"),
    [
        ([], [TEXT], "up to 4 models"),
        ([bert(str(number)) for number in range(5)], [TEXT], "up to 4 models can be looked at side by side, got 5"),
        ([bert(), bert()], [TEXT], "two models have the same name"),
        ([bert()], [], "no text was given"),
        ([bert()], [""], "an empty text"),
        ([bert(), ours()], [TEXT], "different tokens"),
        ([bert(), bert("larger", layers=3)], [TEXT], "different numbers of layers or heads"),
    ],
    ids=["none", "five", "twins", "nothing", "empty", "tokens", "layers"],
)
def test_what_cannot_be_shown_is_told(subjects: list[InspectedModel], texts: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        build_viewer(subjects, texts)
