"""What a benchmark leaves behind: a table, a CSV, a Markdown page and a plot."""

import csv
import platform
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.console import Console
from rich.table import Column, Table

from headwise import __version__
from headwise.inspection import style

T = TypeVar("T")


@dataclass
class Row:
    """One rival at one scheme and length. What was not measured is None, and the note says why."""

    scheme: str
    rival: str
    length: int
    ratio: float | None = None  # median over the rounds of time / the baseline's time in the same round
    ratio_low: float | None = None  # first quartile
    ratio_high: float | None = None  # third quartile
    ms: float | None = None
    busy_ms: float | None = None  # of kernels alone
    mib: float | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    note: str = ""

    def timed(self, seconds: Sequence[float], baseline: Sequence[float], *, absolute: bool) -> None:
        ratios = [own / other for own, other in zip(seconds, baseline, strict=True)]
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        self.ratio_low, self.ratio, self.ratio_high = quartiles
        self.ms = 1000 * statistics.median(seconds) if absolute else None

    @property
    def time_and_memory(self) -> str:
        if self.ratio is None:
            return self.note
        ms = "" if self.ms is None else f", {significant(self.ms)} ms"
        ms += "" if self.busy_ms is None else f" ({significant(self.busy_ms)} of them on the GPU)"
        mib = "" if self.mib is None else f", {significant(self.mib)} MiB"
        return f"{significant(self.ratio)}×{ms}{mib}"


@dataclass(frozen=True)
class About:
    """How the rows came about."""

    title: str
    what: str
    command: str
    device: torch.device

    @property
    def lines(self) -> list[str]:
        if self.device.type == "cuda":
            device = torch.cuda.get_device_name(self.device)
        else:
            device = f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, headwise {__version__}"
        return [f"{datetime.now(UTC):%Y-%m-%d}, {device}, {versions}", f"`{self.command}`"]


def write(rows: Sequence[Row], about: About, folder: Path) -> None:
    """`attention.csv`, `attention.md` and `attention.png` for the title `attention`."""
    write_csv(rows, folder / f"{about.title}.csv")
    (folder / f"{about.title}.md").write_text(markdown(rows, about), encoding="utf-8")
    style.save_figure(plot(rows), folder / f"{about.title}.png")


def write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def show(rows: Sequence[Row], about: About, console: Console) -> None:
    for scheme, header, body in tables(rows):
        table = Table(Column(no_wrap=True), *header[1:], title=scheme, title_justify="left")
        for line in body:
            table.add_row(*line)
        console.print(table)
    console.print(about.what)


def markdown(rows: Sequence[Row], about: About) -> str:
    parts = [f"# headwise bench {about.title}", *about.lines, about.what, f"![plot]({about.title}.png)"]
    for scheme, header, body in tables(rows):
        lines = [header, ["---"] * len(header), *body]
        parts += [f"## {scheme}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def tables(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """For each scheme its name, a header, and a line for each rival with a column for each length."""
    for scheme in unique(row.scheme for row in rows):
        lengths = unique(row.length for row in rows if row.scheme == scheme)
        header, body = ["", "errors", *(f"N = {length}" for length in lengths)], []
        for rival in unique(row.rival for row in rows):
            own = [row for row in rows if (row.scheme, row.rival) == (scheme, rival)]
            caveats = unique(row.note for row in own if row.note and row.ratio is not None)
            errors = [largest(row.output_error for row in own), largest(row.gradient_error for row in own)]
            cells = {row.length: row.time_and_memory for row in own}
            named = [", ".join([rival, *caveats]), ", ".join(filter(None, errors))]
            body.append(named + [cells.get(length, "") for length in lengths])
        yield scheme, header, body


def plot(rows: Sequence[Row]) -> Figure:
    """Time over length above, memory below, a column for each scheme."""
    schemes, rivals = unique(row.scheme for row in rows), unique(row.rival for row in rows)
    with style.plot_style(max(2.6 * len(schemes), 5.0), 5.4) as figure:
        panels = figure.subplots(2, len(schemes), sharex=True, sharey="row", squeeze=False)
        for column, scheme in enumerate(schemes):
            own = [row for row in rows if row.scheme == scheme]
            draw_lines(panels[0][column], own, rivals, lambda row: row.ratio)
            draw_lines(panels[1][column], own, rivals, lambda row: row.mib)
            panels[0][column].set_title(scheme)
            panels[1][column].set_xlabel("length N")
        lengths = unique(row.length for row in rows)
        panels[0][0].set_xticks(lengths, [str(length) for length in lengths])  # all panels share them
        for panel in panels[1]:
            panel.tick_params("x", rotation=45)
        panels[0][0].set_ylabel("time, as a multiple of SDPA's")
        panels[1][0].set_ylabel("peak memory, MiB")
        lines = {str(line.get_label()): line for panel in panels[0] for line in panel.get_lines()}
        columns = max(int(figure.get_figwidth() / 1.8), 1)
        figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=columns)
    return figure


def draw_lines(axes: Axes, rows: Sequence[Row], rivals: Sequence[str], value: Callable[[Row], float | None]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(True)
    for index, rival in enumerate(rivals):
        points = {row.length: y for row in rows if row.rival == rival and (y := value(row))}
        if points:
            marker, colour = style.MARKERS[index % 8], style.PALETTE[index % 8]
            axes.plot(list(points), list(points.values()), label=rival, marker=marker, color=colour)


def unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def largest(errors: Iterable[float | None]) -> str:
    known = [error for error in errors if error is not None]
    return f"{max(known):.0e}" if known else ""


def significant(value: float) -> str:
    """Three digits: 0.123, 1.23, 12.3, 123, 1234."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
