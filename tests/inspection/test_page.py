"""Tests of reports: text is escaped, figures are embedded, nothing is requested."""

import base64
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headwise.inspection import Page, draw_differences


class ParsedPage(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HTML_TEXT = "<script>alert('a & b')</script> \"quoted\" <img src=x>"


def test_text_is_escaped_everywhere() -> None:
    page = Page(HTML_TEXT)
    page.section(HTML_TEXT)
    page.text(HTML_TEXT)
    page.code(HTML_TEXT)
    page.table([HTML_TEXT, "b"], [["1", HTML_TEXT]])
    page.figure(draw_differences({"a": [1.0]}, x="points"), HTML_TEXT)
    parsed = ParsedPage(page.html())
    assert parsed.text.count(HTML_TEXT) == 8  # the title occurs twice
    assert [tag for tag, _ in parsed.tags].count("script") == 0
    (image,) = (attributes for tag, attributes in parsed.tags if tag == "img")
    assert image["alt"] == HTML_TEXT


def test_columns_of_text_are_aligned_to_the_left() -> None:
    page = Page("Report")
    page.table(["split", "model", "accuracy"], [["dev", "this model", "0.79 ± 0.04"], ["dev", "TF-IDF", "0.70"]])
    cells = [attributes.get("class") for tag, attributes in ParsedPage(page.html()).tags if tag in ("th", "td")]
    assert cells == ["text", "text", None] * 3
    assert ".text { text-align: left }" in page.html()


def test_the_file_is_self_contained(tmp_path: Path) -> None:
    page = Page("Report")
    page.figure(draw_differences({"a": [1.0, -1.0]}, x="points"), "Differences.")
    page.write(tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "://" not in html
    assert "@import" not in html
    parsed = ParsedPage(html)
    assert not [tag for tag, _ in parsed.tags if tag in ("link", "script", "iframe")]
    sources = [attributes["src"] for _, attributes in parsed.tags if "src" in attributes]
    assert len(sources) == 1
    assert sources[0] is not None
    media_type, _, data = sources[0].partition(",")
    assert media_type == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")


def test_a_table_has_a_header_and_rows() -> None:
    page = Page("Report")
    page.table(["model", "accuracy"], [["plain", "90.1"], ["guided", "90.3"]])
    tags = [tag for tag, _ in ParsedPage(page.html()).tags]
    assert (tags.count("th"), tags.count("tr"), tags.count("td")) == (2, 3, 4)


@pytest.mark.parametrize("width", [pytest.param(1100, marks=pytest.mark.long), 800])
def test_a_wide_table_fits_the_page(browser: Any, width: int, tmp_path: Path) -> None:
    page = Page("Report")
    header = ["method", "accuracy, %", "difference", "p (Holm)", "p (permutation)", "CI over examples", "CI", "seeds"]
    cells = ["90.12 ± 0.34", "+0.50* [−0.10, 1.10]", "0.0412", "0.0625", "[−0.91, 1.20]", "[−1.01, 1.42]", "10"]
    page.table(header, [["distance-aware, guided by mdg@6=0.01", *cells]])
    page.write(tmp_path / "report.html")
    tab = browser.new_page(viewport={"width": width, "height": 600})
    tab.set_default_timeout(0)
    tab.goto((tmp_path / "report.html").as_uri())
    table, page_width = tab.evaluate("[document.querySelector('table').scrollWidth, document.body.clientWidth]")
    tab.close()
    assert table <= page_width
