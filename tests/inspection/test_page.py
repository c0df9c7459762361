"""A page is one file: nothing is fetched, text is text, figures are inside."""

import base64
from html.parser import HTMLParser
from pathlib import Path

from headwise.inspection import Page, draw_differences


class Found(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.told = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.told += data


HOSTILE = "<script>alert('a & b')</script> \"quoted\" <img src=x>"


def test_text_is_shown_as_it_is_wherever_it_stands() -> None:
    page = Page(HOSTILE)
    page.section(HOSTILE)
    page.text(HOSTILE)
    page.code(HOSTILE)
    page.table([HOSTILE, "b"], [["1", HOSTILE]])
    page.figure(draw_differences({"a": [1.0]}, x="points"), HOSTILE)
    found = Found(page.html())
    assert found.told.count(HOSTILE) == 8  # the title stands twice
    assert [tag for tag, _ in found.tags].count("script") == 0
    (image,) = (attributes for tag, attributes in found.tags if tag == "img")
    assert image["alt"] == HOSTILE


def test_the_file_needs_no_other(tmp_path: Path) -> None:
    page = Page("Report")
    page.figure(draw_differences({"a": [1.0, -1.0]}, x="points"), "Differences.")
    page.write(tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "://" not in written
    assert "@import" not in written
    found = Found(written)
    assert not [tag for tag, _ in found.tags if tag in ("link", "script", "iframe")]
    sources = [attributes["src"] for _, attributes in found.tags if "src" in attributes]
    assert len(sources) == 1
    assert sources[0] is not None
    kind, _, data = sources[0].partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(data).startswith(b"\x89PNG")


def test_a_table_has_its_header_and_its_rows() -> None:
    page = Page("Report")
    page.table(["model", "accuracy"], [["plain", "90.1"], ["guided", "90.3"]])
    tags = [tag for tag, _ in Found(page.html()).tags]
    assert (tags.count("th"), tags.count("tr"), tags.count("td")) == (2, 3, 4)
