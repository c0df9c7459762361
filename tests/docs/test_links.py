"""The targets of all relative links and images exist, including headings."""

from pathlib import Path

import pytest

from tests.docs.pages import LINKED_PAGES, page_name, parse_anchors, parse_links


@pytest.mark.parametrize("page", LINKED_PAGES, ids=page_name)
def test_targets_of_links_exist(page: Path) -> None:
    errors = []
    for line, link in parse_links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists():
            errors.append(f"line {line}: {link}: no such file")
        elif anchor and anchor not in parse_anchors(target):
            errors.append(f"line {line}: {link}: no such heading")
    assert not errors, f"{page_name(page)}: {errors}"
