import pytest

from tests.training.conftest import cheap_baselines, cheap_figures

__all__ = ["cheap_baselines", "cheap_figures"]


@pytest.fixture(autouse=True)
def isolated_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary cache of data sets, and no hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://localhost:9")  # a port without a server
