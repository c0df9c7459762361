"""What the documentation holds: pages, their blocks of code, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"

#: Pages whose code runs.
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose links hold.
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.M)
INLINE = re.compile(r"(?<!`)`(?P<code>[^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not run."""

    def __str__(self) -> str:
        return f"{named(self.page)}, line {self.line}"


@dataclass(frozen=True)
class Command:
    page: Path
    line: int
    words: tuple[str, ...]
    reason: str | None = None

    def __str__(self) -> str:
        return f"{named(self.page)}, line {self.line}: {shlex.join(self.words)}"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, line_of(text, found.start("text")), found["language"], found["text"], found["reason"])
        for found in BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks, whose lines stay where they are."""
    return BLOCK.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))


def commands(page: Path) -> Iterator[Command]:
    """What is typed into a shell: the lines of blocks, each part of a pipe by itself."""
    for block in blocks(page):
        if block.language == "bash":
            for number, line in enumerate(block.text.splitlines()):
                for part in " ".join(shlex.split(line, comments=True, posix=False)).split(" | "):
                    if words := tuple(shlex.split(part)):
                        yield Command(page, block.line + number, words, block.reason)


def mentioned(page: Path) -> Iterator[Command]:
    """Commands of ours within the text."""
    text = prose(page)
    for found in INLINE.finditer(text):
        if re.match(r"headwise [a-z]", found["code"]):
            yield Command(page, line_of(text, found.start()), tuple(shlex.split(found["code"])))


def options(page: Path) -> Iterator[tuple[int, str]]:
    """Options that the text mentions, outside of whole commands of other programs."""
    text = prose(page)
    for found in INLINE.finditer(text):
        if found["code"].startswith(("--", "headwise ")):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", found["code"]):
                yield line_of(text, found.start()), option


def links(page: Path) -> Iterator[tuple[int, str]]:
    text = prose(page)
    for found in LINK.finditer(text):
        if not re.match(r"[a-z]+:", found["target"]):
            yield line_of(text, found.start()), found["target"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = [found["title"] for found in HEADING.finditer(prose(page))]
    return {slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles}


def slug(title: str) -> str:
    """
    >>> slug("Does it help? Compare"), slug("`attend`, and backends")
    ('does-it-help-compare', 'attend-and-backends')
    """
    return re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())
