import pytest


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, and nothing is left in the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://localhost:9")  # where nobody answers
