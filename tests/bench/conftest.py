import pytest

from headwise.bench import measure
from tests.short_form import choose_size


@pytest.fixture
def cheap_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time single calls, and measure no memory in the short form: each workload needs a process for it."""
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.0)
    if choose_size(short=True, long=False):
        monkeypatch.setattr(measure, "cpu_peak_mib", lambda *_: 1.0)
