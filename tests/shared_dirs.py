"""Directories that several workers of pytest use, and the first one builds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def build_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Return a directory for all workers. `build` fills it in the worker that needs it first; others wait."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    directory, finished = root / name, root / f"{name}.finished"
    with FileLock(root / f"{name}.lock"):
        if not finished.exists():
            directory.mkdir()
            build(directory)
            finished.touch()
    return directory
