"""A report as one HTML file: no script, nothing fetched, figures inside; it opens from disk, in light and dark."""

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from headwise.inspection import style

LOOK = """
:root { color-scheme: light dark }
:root { --ink: #1b1f24; --faint: #5b6470; --paper: #fdfdfc; --line: #d9dde2; --block: #f1f3f5 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --faint: #a0a8b3; --paper: #15181c; --line: #363c44; --block: #20252b }
}
body { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
       font: 1rem/1.6 system-ui, sans-serif }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.25rem; margin: 3rem 0 .5rem }
p, figcaption { max-width: 44rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .4rem 1.1rem .4rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
th { color: var(--faint); font-weight: 600 }
figure { margin: 1.25rem 0 }
img { display: block; max-width: 100%; box-sizing: border-box; padding: .75rem; background: #fff;
      border: 1px solid var(--line); border-radius: 8px }
figcaption { color: var(--faint); font-size: .9rem; margin-top: .5rem }
pre { background: var(--block); padding: .8rem 1rem; border-radius: 8px; overflow-x: auto; font-size: .9rem }
"""

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
        style.save(figure, file)
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
