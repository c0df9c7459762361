"""Reports as a single HTML file: no scripts, no requests, embedded figures, light and dark."""

import base64
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from headwise.inspection import style

#: The browser blocks scripts and requests.
CONTENT_SECURITY_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@cache
def load_asset(name: str) -> str:
    """Return the contents of a file in `assets`."""
    return (files("headwise.inspection") / "assets" / name).read_text(encoding="utf-8")


def is_text_column(cells: Sequence[str]) -> bool:
    """Return whether most cells that are not empty start with a letter.

    >>> is_text_column(["this model", "", "TF-IDF"]), is_text_column(["0.79", "not measured", "−0.1"])
    (True, False)
    """
    filled = [cell for cell in cells if cell]
    return 2 * sum(cell[0].isalpha() for cell in filled) > len(filled)


class Page:
    """A report that is built from top to bottom. All text is escaped.

    Example:
        >>> page = Page("Two models")
        >>> page.section("Figures")
        >>> page.table(["model", "accuracy"], [["<plain>", "90.1"]])
        >>> "&lt;plain&gt;" in page.html()
        True
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def section(self, heading: str) -> None:
        """Add a heading."""
        self.parts.append(f"<h2>{escape(heading)}</h2>")

    def text(self, paragraph: str) -> None:
        """Add a paragraph."""
        self.parts.append(f"<p>{escape(paragraph)}</p>")

    def code(self, lines: str) -> None:
        """Add a code block."""
        self.parts.append(f"<pre><code>{escape(lines)}</code></pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table. Cells are wrapped if it is wider than the page. Columns of text are aligned to the left."""
        is_text = [is_text_column([row[i] for row in rows]) for i in range(len(header))]

        def build_row(tag: str, cells: Sequence[str]) -> str:
            kinds = [' class="text"' if left else "" for left in is_text]
            return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

        head = build_row("th", header)
        body = "".join(f"<tr>{build_row('td', row)}</tr>\n" for row in rows)
        self.parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
        )

    def figure(self, figure: Figure, caption: str) -> bytes:
        """Add a figure, embedded as PNG, and return the PNG."""
        file = BytesIO()
        style.save_figure(figure, file)
        png = base64.b64encode(file.getvalue()).decode("ascii")
        width = round(96 * figure.get_figwidth())  # CSS pixels: the figure's own size, at a higher resolution
        self.parts.append(
            f'<figure><img width="{width}" alt="{escape(caption)}" src="data:image/png;base64,{png}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
        return file.getvalue()

    def html(self) -> str:
        """Return the report as HTML."""
        head = (
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{load_asset('theme.css')}</style>"
        )
        body = "\n".join([f"<h1>{escape(self.title)}</h1>", *self.parts])
        return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'

    def write(self, path: Path) -> None:
        """Write the report to a file."""
        path.write_text(self.html(), encoding="utf-8")
