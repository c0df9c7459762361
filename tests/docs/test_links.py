"""Every relative link and picture leads somewhere, also to its heading."""

from pathlib import Path

import pytest

from tests.docs.pages import LINKED, anchors, links, named


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for line, link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            lost.append(f"line {line}: {link}: no such file")
        elif anchor and anchor not in anchors(target):
            lost.append(f"line {line}: {link}: no such heading")
    assert not lost, f"{named(page)}: {lost}"
