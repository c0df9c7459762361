"""The test files that use a GPU if there is one: `pytest --gpu tests` collects these only.

There is no list. A file uses a GPU if it, or a module of the tests that it imports, asks torch whether there is one.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUESTION = re.compile(r"\bcuda\.is_available\(")


def uses_gpu(path: Path, root: Path = ROOT) -> bool:
    """Return whether a file uses a GPU if there is one.

    Args:
        path: the file.
        root: the directory of the package `tests`.
    """
    seen, pending = {path}, [path]
    while pending:
        asks, imported = read_module(pending.pop(), root)
        if asks:
            return True
        pending += imported - seen
        seen |= imported
    return False


@cache
def read_module(path: Path, root: Path) -> tuple[bool, frozenset[Path]]:
    """Return whether a module asks for a GPU itself, and the files of the package `tests` that it imports."""
    source = path.read_text(encoding="utf-8")
    return bool(QUESTION.search(source)), frozenset(imported_files(source, root))


def imported_files(source: str, root: Path) -> Iterator[Path]:
    """Yield the files of the package `tests` that a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            path = root.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith("tests.") and path.is_file():
                yield path
