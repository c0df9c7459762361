"""Tests of the interactive page as a file: self-contained, small, escaped, and its bytes are the maps."""

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
from headwise.inspection.viewer import MAX_THUMBNAIL_SIZE, make_thumbnails
from tests.inspection.random_viewers import make_viewer, random_passage
from tests.inspection.tiny_models import TEXT, build_bert, build_headwise

HTML_TEXT = "</script><script>window.hacked = 1</script> \"a\" 'b' & <img src=x onerror=window.hacked=1> \u2028 <!--"


def get_metadata(html: str) -> Any:
    (content,) = re.findall(r'<script type="application/json" id="metadata">(.*?)</script>', html, re.DOTALL)
    return json.loads(content)


def decode_chunk(html: str, name: str) -> bytes:
    ((kind, content),) = re.findall(rf'type="application/(.*?)" id="{name}">([A-Za-z0-9+/=]*)</script>', html)
    return zlib.decompress(base64.b64decode(content)) if kind == "zlib" else base64.b64decode(content)


def test_the_page_contains_the_captured_maps() -> None:
    viewer = build_viewer([build_bert(), build_bert("other", seed=1)], [TEXT, "a fine film"])
    html = viewer.html()
    for text, example in enumerate(viewer.examples):
        metadata = get_metadata(html)["texts"][text]
        assert metadata["tokens"] == list(example.passages[0].tokens)
        for model, passage in enumerate(example.passages):
            for number, layer in enumerate(passage.layers):
                cells = np.frombuffer(decode_chunk(html, f"cells-{text}-{model}-{number}"), np.uint8)
                np.testing.assert_array_equal(cells.reshape(layer.cells.shape), layer.cells)
                assert layer.distance is not None
                for name, expected in (("cell_max", layer.cell_max), ("distance", layer.distance)):
                    np.testing.assert_allclose(metadata["models"][model][name][number], expected, rtol=1e-4)


def test_the_page_contains_the_top_keys_of_long_texts() -> None:
    passage = random_passage(600, layers=1, heads=2)
    html = make_viewer(passage).html()
    layer = passage.layers[0]
    assert layer.top_keys is not None
    assert get_metadata(html)["texts"][0]["group_sizes"] == [3, 3]
    keys = np.frombuffer(decode_chunk(html, "keys-0-0-0"), "<u2")
    np.testing.assert_array_equal(keys.reshape(layer.top_keys.shape), layer.top_keys)


def test_the_page_is_small(tmp_path: Path) -> None:
    make_viewer(random_passage(128, layers=12, heads=12)).write(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5 * 2**20


def test_the_page_is_self_contained_and_allows_only_its_own_script() -> None:
    html = build_viewer([build_bert()], [TEXT]).html()
    assert not re.search(r"<(link|iframe|img)\b", html)
    assert not re.search(r"""(src|href)\s*=""", html.split('id="metadata"')[0])
    assert set(re.findall(r"https?://[^\s\"']+", html)) <= {"http://www.w3.org/2000/svg"}  # a namespace
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_html_in_names_texts_and_labels_is_escaped() -> None:
    model = build_bert()
    html_model = InspectedModel(name=HTML_TEXT, model=model.model, tokenizer=model.tokenizer)
    html = build_viewer([html_model], [HTML_TEXT], labels=[HTML_TEXT]).html()
    assert "<script>window" not in html
    assert "<img" not in html
    metadata = get_metadata(html)
    assert metadata["models"][0]["name"] == HTML_TEXT
    assert metadata["texts"][0]["label"] == HTML_TEXT


def test_a_notebook_displays_the_page_in_a_sandboxed_frame() -> None:
    viewer = build_viewer([build_bert()], [TEXT])
    frame = viewer._repr_html_()
    (content,) = re.findall(r'srcdoc="([^"]*)"', frame)
    assert unescape(content) == viewer.html()
    assert 'sandbox="allow-scripts"' in frame


def test_the_page_contains_the_statistics() -> None:
    model = build_bert()
    statistics = compute_head_statistics(model, [(TEXT,), ("a fine film",)])
    html = build_viewer([model], [TEXT], statistics=[statistics]).html()
    entropy = get_metadata(html)["statistics"][0]["measures"]["entropy"]
    np.testing.assert_allclose(entropy, statistics.measures["entropy"], rtol=1e-4)
    similarity = np.frombuffer(decode_chunk(html, "similarity-0"), np.uint8).reshape(8, 8) / 127 - 1
    np.testing.assert_allclose(similarity, statistics.similarity, atol=0.005)


def test_thumbnails_are_max_pooled() -> None:
    cells = np.zeros((1, 100, 100), dtype=np.uint8)
    cells[0, 57, 3] = 200
    thumbnails = make_thumbnails(cells)
    assert thumbnails.shape == (1, MAX_THUMBNAIL_SIZE, MAX_THUMBNAIL_SIZE)
    assert thumbnails.max() == 200
    assert (thumbnails > 0).sum() == 1


@pytest.mark.parametrize(
    ("models", "texts", "message"),
    [
        ([], [TEXT], "between 1 and 4 models can be shown together, got 0"),
        ([build_bert(str(number)) for number in range(5)], [TEXT], "between 1 and 4 models .* got 5"),
        ([build_bert(), build_bert()], [TEXT], "two models have the same name"),
        ([build_bert()], [], "there are no texts"),
        ([build_bert()], [""], "a text is empty"),
        ([build_bert(), build_headwise()], [TEXT], "different tokens"),
        ([build_bert(), build_bert("larger", layers=3)], [TEXT], "different numbers of layers or heads"),
    ],
    ids=["no model", "five models", "same name", "no text", "empty text", "tokens", "layers"],
)
def test_invalid_arguments_are_errors(models: list[InspectedModel], texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_viewer(models, texts)


def test_a_model_with_nan_weights_is_an_error(tmp_path: Path) -> None:
    bert = build_bert()
    next(bert.model.parameters()).data.fill_(float("nan"))
    viewer = build_viewer([bert], [TEXT])
    with pytest.raises(UserError, match="NaN or infinite"):
        viewer.write(tmp_path / "page.html")
