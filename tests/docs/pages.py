"""Parser of the documentation: pages, their code blocks, commands, links and headings."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"

#: Pages whose code is run.
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: Pages whose links are checked.
LINKED_PAGES = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:<!-- not run: (?P<skip_reason>[^\n]+) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.M)
INLINE_CODE = re.compile(r"(?<!`)`(?P<code>[^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A code block of a page; `skip_reason` states why it is not run."""

    page: Path
    line: int
    language: str
    text: str
    skip_reason: str | None

    def __str__(self) -> str:
        return f"{page_name(self.page)}, line {self.line}"


@dataclass(frozen=True)
class Command:
    """A shell command of a page."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{page_name(self.page)}, line {self.line}: {shlex.join(self.words)}"


def page_name(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def line_number(text: str, index: int) -> int:
    """Return the line of a character, from 1."""
    return text.count("\n", 0, index) + 1


def parse_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, line_number(text, match.start("text")), match["language"], match["text"], match["skip_reason"])
        for match in BLOCK.finditer(text)
    ]


def read_prose(page: Path) -> str:
    """Return the text of a page without its code blocks, with the same line numbers."""
    return BLOCK.sub(lambda match: "\n" * match[0].count("\n"), page.read_text(encoding="utf-8"))


def parse_commands(page: Path) -> Iterator[Command]:
    """Yield the commands of the `bash` blocks of a page."""
    for block in parse_blocks(page):
        yield from parse_block_commands(block)


def parse_block_commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a `bash` block, each part of a pipe separately; none for other blocks."""
    if block.language != "bash":
        return
    for index, line in enumerate(block.text.splitlines()):
        for part in " ".join(shlex.split(line, comments=True, posix=False)).split(" | "):
            if words := tuple(shlex.split(part)):
                yield Command(block.page, block.line + index, words)


def parse_inline_commands(page: Path) -> Iterator[Command]:
    """Yield the headwise commands in the text of a page."""
    text = read_prose(page)
    for match in INLINE_CODE.finditer(text):
        if re.match(r"headwise [a-z]", match["code"]):
            yield Command(page, line_number(text, match.start()), tuple(shlex.split(match["code"])))


def parse_inline_options(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and name of the options in the text of a page, except those of other programs."""
    text = read_prose(page)
    for match in INLINE_CODE.finditer(text):
        if match["code"].startswith(("--", "headwise ")):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", match["code"]):
                yield line_number(text, match.start()), option


def parse_links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and target of the relative links of a page."""
    text = read_prose(page)
    for match in LINK.finditer(text):
        if not re.match(r"[a-z]+:", match["target"]):
            yield line_number(text, match.start()), match["target"]


def parse_anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MkDocs define them."""
    titles = [match["title"] for match in HEADING.finditer(read_prose(page))]
    return {slugify(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles}


def slugify(title: str) -> str:
    """Return the anchor of a heading.

    >>> slugify("Does it help? Compare"), slugify("`attend`, and backends")
    ('does-it-help-compare', 'attend-and-backends')
    """
    return re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())
