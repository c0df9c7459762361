"""A finished run on texts, shared by the tests of jobs."""

from pathlib import Path

import pytest

from headwise.training import TextConfig, train
from tests.training.conftest import rows, write


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write(tmp_path_factory.mktemp("data") / "reviews.csv", ("text", "label"), list(rows(80)))
    config = TextConfig(
        data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=2, learning_rate=0.01, batch_size=16
    )
    with pytest.MonkeyPatch.context() as monkeypatch:  # the fixture that sets the cache has function scope
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
        return train(config, tmp_path_factory.mktemp("runs") / "run").run_dir
