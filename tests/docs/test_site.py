"""The site builds without warnings, loads nothing from other servers, and has no broken links."""

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
from mkdocs.structure.files import get_files

from tests.docs.pages import LINKED_PAGES, README, ROOT, page_name, parse_links

#: The packages on each page of the API reference.
API_PAGES = {
    "attention": ["attention"],
    "guidance": ["guidance", "guides"],
    "inspection": ["inspection"],
    "models": ["models"],
    "tasks": ["tasks"],
    "training": ["training"],
}


class WarningRecorder(logging.Handler):
    """Collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the site."""
    directory = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(directory), strict=True)
    recorder, logger = WarningRecorder(), logging.getLogger("mkdocs")
    logger.addHandler(recorder)
    try:
        build(config)
    finally:
        logger.removeHandler(recorder)
    assert not recorder.messages
    return directory


def test_site_contains_the_files_to_which_its_pages_link() -> None:
    config = load_config(str(ROOT / "mkdocs.yml"))
    files = config.plugins.on_files(get_files(config), config=config)
    on_site = {Path(file.abs_src_path) for file in files if file.abs_src_path} | {README}
    missing = [
        f"{page_name(page)}, line {line}: {link}"
        for page in LINKED_PAGES
        for line, link in parse_links(page)
        if page in on_site and not link.startswith("#")
        for target in [(page.parent / link.partition("#")[0]).resolve()]
        if target.is_file() and target not in on_site
    ]
    assert len(on_site) > 20
    assert not missing


@pytest.mark.long  # test_links.py checks the links of the sources
def test_links_of_the_site_are_not_broken(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for path, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]*)"', text):
            path, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target]):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 20
    assert not broken


@pytest.mark.long
def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//[^"]*"', text), page
        assert not re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(?:https?:)?//[^"]*"', text), page


@pytest.mark.parametrize("page", API_PAGES)
def test_packages_are_in_the_reference(page: str) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text(encoding="utf-8")
    assert all(f"\n::: headwise.{package}\n" in text for package in API_PAGES[page])


@pytest.mark.long
@pytest.mark.parametrize("page", API_PAGES)
def test_public_names_are_in_the_reference(site: Path, page: str) -> None:
    text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
    documented = {name.rpartition(".")[2] for name in re.findall(r'id="headwise\.([\w.]+)"', text)}
    for package in API_PAGES[page]:
        module = import_module(f"headwise.{package}")
        public = {name for name in module.__all__ if isclass(getattr(module, name)) or isroutine(getattr(module, name))}
        assert public
        assert public <= documented, public - documented
