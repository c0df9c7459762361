"""A report as one HTML file: no script, nothing fetched, figures inside; it opens from disk, in light and dark."""

import base64
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from headwise.inspection import style

#: What every page of headwise shares.
LOOK = (files("headwise.inspection") / "assets" / "look.css").read_text(encoding="utf-8")

#: The browser itself sees to it that nothing is fetched.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Page:
    """A page that is filled from top to bottom. All text is taken as text: what looks like HTML is shown, not obeyed.

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
        self.parts.append(f"<h2>{escape(heading)}</h2>")

    def text(self, paragraph: str) -> None:
        self.parts.append(f"<p>{escape(paragraph)}</p>")

    def code(self, lines: str) -> None:
        self.parts.append(f"<pre><code>{escape(lines)}</code></pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
        self.parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
        )

    def figure(self, figure: Figure, caption: str) -> None:
        """A picture, which becomes part of the page."""
        file = BytesIO()
        style.save_figure(figure, file)
        picture = base64.b64encode(file.getvalue()).decode("ascii")
        width = round(96 * figure.get_figwidth())  # as large as it was drawn, with sharp pixels
        self.parts.append(
            f'<figure><img width="{width}" alt="{escape(caption)}" src="data:image/png;base64,{picture}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def html(self) -> str:
        head = (
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{LOOK}</style>"
        )
        body = "\n".join([f"<h1>{escape(self.title)}</h1>", *self.parts])
        return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'

    def write(self, path: Path) -> None:
        path.write_text(self.html(), encoding="utf-8")
