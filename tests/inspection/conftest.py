"""A real browser, where there is one, and a place for what it saw."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Quiet, and without asking the network for anything.
ARGUMENTS = [
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
    sync_api = pytest.importorskip("playwright.sync_api", reason="no browser tests: playwright is not installed")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no browser tests: there is no Chromium on this system (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def artefacts(request: pytest.FixtureRequest) -> Path:
    """Where screenshots stay after the tests."""
    folder = request.config.rootpath / "artefacts"
    folder.mkdir(exist_ok=True)
    return folder


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens a page from disk; whatever the console says, or that goes wrong, fails the test in the end."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_page(path: Path, link: str = "", **options: Any) -> Any:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith("file:") else complaints.append(asked.url))
        page.goto(path.as_uri() + link)
        page.evaluate("headwise.ready")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
