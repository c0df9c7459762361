"""The probe of the Hugging Face hub."""

from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from headwise.tasks.hub import is_hub_reachable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, True),
        (HfHubHTTPError.__new__(HfHubHTTPError), True),
        (HFValidationError("invalid name"), True),
        (ConnectionError("no network"), False),
    ],
    ids=["found", "not-found", "invalid", "offline"],
)
def test_the_hub_is_reachable_if_it_answers(
    error: Exception | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repo_info(self: HfApi, repo_id: str, *, repo_type: str, timeout: float) -> Any:
        assert (repo_id, repo_type) == ("owner/name", "model")
        if error is not None:
            raise error

    monkeypatch.setattr(HfApi, "repo_info", repo_info)
    assert is_hub_reachable("owner/name", "model") == expected
