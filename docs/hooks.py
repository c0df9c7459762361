"""MkDocs hooks: add pages from outside docs/ to the site, and convert the repository's links to links of the site."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

#: Files outside docs/ that the site contains.
EXTRA_FILES = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "benchmarks/queue.txt",
    "benchmarks/results/**/*",
    "benchmarks/run_long_documents.sh",
    "benchmarks/run_offline.sh",
    "examples/slurm/*.sh",
    "notebooks/*.ipynb",
    "src/headwise/studies/papers/figures.yaml",
]

#: A relative link, without its anchor.
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside docs/. Benchmark results are not in the navigation."""
    for pattern in EXTRA_FILES:
        for path in sorted(path for path in ROOT.glob(pattern) if path.is_file()):
            name = path.relative_to(ROOT).as_posix()
            file = File(name, str(ROOT), config["site_dir"], config["use_directory_urls"])
            if name.startswith("benchmarks"):
                file.inclusion = file.inclusion.NOT_IN_NAV
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Convert links between files of the repository to links between pages of the site."""
    source_dir = Path(page.file.abs_src_path).relative_to(ROOT).parent.as_posix()
    page_dir = posixpath.dirname(page.file.src_uri)

    def convert(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(source_dir, link[2]))
        if target == "README.md":
            target = "docs/index.md"
        if (ROOT / target).is_dir():
            target = first_page(target)
        return link[1] + posixpath.relpath(target.removeprefix("docs/"), page_dir or ".")

    return LINK.sub(convert, markdown)


def first_page(directory: str) -> str:
    """Return the first page of a directory of results, to which links to the directory lead."""
    return min(path.relative_to(ROOT).as_posix() for path in (ROOT / directory).glob("*.md"))
