"""Notebooks are whole, carry no outputs, and run."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]


def sources(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    nbformat.validate(read(path))
    assert not any(cell.get("outputs") for cell in read(path).cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_notebooks_runs(path: Path) -> None:
    space: dict[str, Any] = {}
    for number, source in enumerate(sources(path)):
        exec(compile(source, f"{path.name}, code {number}", "exec"), space)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_in_a_kernel(path: Path) -> None:
    nbclient.NotebookClient(read(path), timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
