"""The architecture page shows the rooms and doors that tests.test_layering.py keeps."""

import re
from xml.etree import ElementTree

from tests.docs.pages import ROOT
from tests.test_layering import DEPENDENCIES

PAGE = ROOT / "docs" / "architecture.md"
PICTURE = ROOT / "docs" / "architecture" / "rooms.svg"


def test_the_table_is_true() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.M)
    told = {room: set() if doors == "nothing" else set(doors.split(", ")) for room, doors in rows}
    assert told == DEPENDENCIES


def test_what_arrows_lead_to_is_what_may_be_imported() -> None:
    arrows = {(arrow.get("data-from"), arrow.get("data-to")) for arrow in ElementTree.parse(PICTURE).iter()}

    def reached(room: str) -> set[str]:
        ahead = {str(to) for here, to in arrows if here == room}
        return ahead.union(*map(reached, ahead))

    assert {room: reached(room) for room in DEPENDENCIES} == DEPENDENCIES
