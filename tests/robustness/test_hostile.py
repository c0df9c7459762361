"""Hostile input: no crash but our mistakes, no hang, no code run. `make fuzz` tries 100,000 inputs and more."""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.robustness.hostile import TARGETS, inputs, try_out, valid

SHORT, FULL = 40, 6_000  # inputs of each label_type


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory, where there is such a place: files are small and many."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("name", TARGETS)
def test_only_mistakes_are_raised(name: str, place: Path, request: pytest.FixtureRequest) -> None:
    own = place / name
    own.mkdir()
    sound = valid(name)
    count = FULL if request.config.getoption("--slow") else SHORT

    @settings(
        max_examples=count,
        deadline=timedelta(seconds=30),
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=count == SHORT,
    )
    @given(st.just(sound) | inputs(sound))
    def trial(data: bytes) -> None:
        try_out(name, data, own)

    trial()
