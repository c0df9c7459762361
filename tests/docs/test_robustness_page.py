"""Every promise of docs/robustness.md names a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "robustness.md"


def named_tests() -> list[tuple[str, str]]:
    """Return the files and functions of tests that the page names."""
    return re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))


def test_named_tests_exist() -> None:
    assert len(named_tests()) > 20
    for file, function in named_tests():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not function or (function in names and function.startswith("test_")), f"{file}::{function}"


def test_every_promise_names_a_test() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line == "| promise | test |"]
    assert len(starts) >= 4
    for start in starts:
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            assert "::test_" in line, line
