"""Notebooks are valid, have no outputs, and run."""

from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read_notebook(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call, unused-ignore]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_have_no_outputs(path: Path) -> None:
    notebook = read_notebook(path)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_of_notebooks_runs(path: Path) -> None:
    variables: dict[str, Any] = {}
    for index, cell in enumerate(read_notebook(path).cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{path.name}, cell {index}", "exec"), variables)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_in_a_kernel(path: Path) -> None:
    notebook = read_notebook(path)
    nbclient.NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(path.parent)}}).execute()
