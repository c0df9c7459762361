"""The site also shows what lies outside of docs: results of benchmarks, changes, notebooks.

Links in pages are those of the repository, so that they work there too; here they become the site's.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
SHOWN = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/results/**/*",
    "notebooks/*.ipynb",
    "src/headwise/studies/papers/figures.yaml",
]
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    for pattern in SHOWN:
        for path in sorted(path for path in ROOT.glob(pattern) if path.is_file()):
            place = path.relative_to(ROOT).as_posix()
            file = File(place, str(ROOT), config["site_dir"], config["use_directory_urls"])
            if place.startswith("benchmarks"):
                file.inclusion = file.inclusion.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between places in the repository, as links between places in the site."""
    within = Path(page.file.abs_src_path).relative_to(ROOT).parent.as_posix()
    here = posixpath.dirname(page.file.src_uri)

    def placed(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(within, found[2]))
        if target == "README.md":
            target = "docs/index.md"
        if (ROOT / target).is_dir():
            target = folder_page(target)
        return found[1] + posixpath.relpath(target.removeprefix("docs/"), here or ".")

    return LINK.sub(placed, markdown)


def folder_page(folder: str) -> str:
    """A folder of results is shown by its first page."""
    return min(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob("*.md"))
