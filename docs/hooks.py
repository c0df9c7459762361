"""MkDocs hooks that add files outside of docs to the site: benchmark results, changelog, notebooks.

Pages link to paths in the repository, so that the links also work there. The hooks replace them by paths in the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Files outside of docs that are part of the site.
EXTRA_FILES = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/results/**/*",
    "notebooks/*.ipynb",
    "src/headwise/studies/papers/figures.yaml",
]
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs."""
    for pattern in EXTRA_FILES:
        for path in sorted(path for path in ROOT.glob(pattern) if path.is_file()):
            uri = path.relative_to(ROOT).as_posix()
            file = File(uri, str(ROOT), config["site_dir"], config["use_directory_urls"])
            if uri.startswith("benchmarks"):
                file.inclusion = file.inclusion.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to paths in the repository by links to paths in the site."""
    repository_dir = Path(page.file.abs_src_path).relative_to(ROOT).parent.as_posix()
    site_dir = posixpath.dirname(page.file.src_uri)

    def replace_link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(repository_dir, match[2]))
        if target == "README.md":
            target = "docs/index.md"
        if (ROOT / target).is_dir():
            target = first_page(target)
        return match[1] + posixpath.relpath(target.removeprefix("docs/"), site_dir or ".")

    return LINK.sub(replace_link, markdown)


def first_page(directory: str) -> str:
    """Return the first page of a directory, the target of links to the directory."""
    return min(path.relative_to(ROOT).as_posix() for path in (ROOT / directory).glob("*.md"))
