"""Fixtures for tests in a browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Disables background requests.
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return the system's Chromium, or skip the test."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests require playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("browser tests require Chromium (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=BROWSER_ARGUMENTS, timeout=0)
        yield chromium
        chromium.close()


@pytest.fixture
def artefacts(request: pytest.FixtureRequest) -> Path:
    """Return the directory for screenshots, which are kept after the tests."""
    directory = request.config.rootpath / "artefacts"
    directory.mkdir(exist_ok=True)
    return directory


OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open pages from disk. Console messages, errors and requests fail the test at its end."""
    problems: list[str] = []
    contexts: list[Any] = []

    def open_file(path: Path, fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        context.set_default_timeout(0)  # the machine may be busy
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
        page.goto(path.as_uri() + fragment)
        page.evaluate("headwise.ready")
        return page

    yield open_file
    for context in contexts:
        context.close()
    assert not problems
