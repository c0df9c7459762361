"""The architecture page and its diagram show the dependencies that tests/test_layering.py checks."""

import re
from xml.etree import ElementTree

from tests.docs.pages import ROOT
from tests.test_layering import DEPENDENCIES

PAGE = ROOT / "docs" / "architecture.md"
DIAGRAM = ROOT / "docs" / "architecture" / "packages.svg"


def test_table_lists_dependencies() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    table = {package: set() if imports == "none" else set(imports.split(", ")) for package, imports in rows}
    assert table == DEPENDENCIES


def test_packages_reached_by_arrows_are_dependencies() -> None:
    arrows = [(arrow.get("data-from"), arrow.get("data-to")) for arrow in ElementTree.parse(DIAGRAM).iter()]

    def reachable(package: str) -> set[str]:
        targets = {str(target) for source, target in arrows if source == package}
        return targets.union(*map(reachable, targets))

    assert {package: reachable(package) for package in DEPENDENCIES} == DEPENDENCIES
