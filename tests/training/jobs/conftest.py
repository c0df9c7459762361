"""A finished run on texts, shared by the tests of jobs, and worker processes that start at once."""

import multiprocessing
from pathlib import Path

import pytest

from headwise.training import TextConfig, train
from tests.short_form import choose_size
from tests.training.conftest import rows, write

get_context = multiprocessing.get_context


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the short form, fork worker processes from one that has imported headwise, instead of spawning them."""
    if choose_size(short=True, long=False):
        multiprocessing.set_forkserver_preload(["headwise.training.jobs", "tests.training.jobs.counting"])
        methods = {"spawn": "forkserver"}
        monkeypatch.setattr("multiprocessing.get_context", lambda method=None: get_context(methods.get(method, method)))


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(80)))
    config = TextConfig(
        data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=2, learning_rate=0.01, batch_size=16
    )
    return train(config, tmp_path_factory.mktemp("runs") / "run").run_dir
