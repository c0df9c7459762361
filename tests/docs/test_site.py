"""The site builds without a warning, asks nobody for anything, and its links lead somewhere."""

import logging
import re
from html import unescape
from importlib import import_module
from inspect import isclass, isroutine
from pathlib import Path
from urllib.parse import unquote

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(made), strict=True)
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    ear = Ear(logging.WARNING)
    logging.getLogger("mkdocs").addHandler(ear)
    try:
        build(config)
    finally:
        logging.getLogger("mkdocs").removeHandler(ear)
    assert not heard
    return made


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for path, text in pages.items()}
    lost = []
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            path, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 20
    assert not lost


def test_nothing_is_asked_of_others(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"', text), page
        assert not re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//[^"]*"', text), page


@pytest.mark.parametrize("room", ["attention", "guidance", "inspection", "models", "tasks", "training"])
def test_what_is_public_is_in_the_reference(site: Path, room: str) -> None:
    text = (site / "api" / f"{room}.html").read_text(encoding="utf-8")
    found = {name.rpartition(".")[2] for name in re.findall(r'id="headwise\.([\w.]+)"', text)}
    module = import_module(f"headwise.{room}")
    public = {name for name in module.__all__ if isclass(getattr(module, name)) or isroutine(getattr(module, name))}
    assert public
    assert public <= found, public - found
