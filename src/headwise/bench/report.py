"""Reports of benchmarks: printed tables, a CSV file, a Markdown page and a plot."""

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
from headwise.bench.measure import quartiles_of_ratios
from headwise.inspection import style

T = TypeVar("T")


@dataclass
class Measurement:
    """Results of one implementation for one scheme and length. Values that were not measured are None; see the note."""

    scheme: str  # or another property by which tables are grouped
    implementation: str
    length: int
    ratio: float | None = None  # median over the rounds of time / baseline time in the same round
    ratio_low: float | None = None  # first quartile
    ratio_high: float | None = None  # third quartile
    ms: float | None = None
    kernel_ms: float | None = None  # of the GPU's kernels alone
    peak_mib: float | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    note: str = ""

    def set_times(self, seconds: Sequence[float], baseline_seconds: Sequence[float], *, absolute: bool) -> None:
        """Compute the ratios round by round, and the median time if `absolute`."""
        self.ratio_low, self.ratio, self.ratio_high = quartiles_of_ratios(seconds, baseline_seconds)
        self.ms = 1000 * statistics.median(seconds) if absolute else None

    @property
    def summary(self) -> str:
        """Time and memory for a table cell, or the note if they were not measured."""
        if self.ratio is None:
            return self.note
        ms = "" if self.ms is None else f", {format_digits(self.ms)} ms"
        ms += "" if self.kernel_ms is None else f" (GPU kernels: {format_digits(self.kernel_ms)} ms)"
        mib = "" if self.peak_mib is None else f", {format_digits(self.peak_mib)} MiB"
        return f"{format_digits(self.ratio)}×{ms}{mib}"


@dataclass(frozen=True)
class ReportHeader:
    """Title and description of a report, and how it was made."""

    title: str
    description: str
    command: str
    device: torch.device

    @property
    def environment(self) -> list[str]:
        """Date, device, versions and command, as lines of Markdown."""
        if self.device.type == "cuda":
            device = torch.cuda.get_device_name(self.device)
        else:
            device = f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
        versions = f"Python {platform.python_version()}, torch {torch.__version__}, headwise {__version__}"
        return [f"{datetime.now(UTC):%Y-%m-%d}, {device}, {versions}", f"`{self.command}`"]


def write_report(measurements: Sequence[Measurement], header: ReportHeader, out_dir: Path) -> None:
    """Write TITLE.csv, TITLE.md and TITLE.png."""
    write_csv(measurements, out_dir / f"{header.title}.csv")
    (out_dir / f"{header.title}.md").write_text(format_markdown(measurements, header), encoding="utf-8")
    style.save_figure(plot(measurements), out_dir / f"{header.title}.png")


def write_csv(measurements: Sequence[Measurement], path: Path) -> None:
    """Write one row per measurement."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measurement)])
        writer.writeheader()
        writer.writerows(asdict(measurement) for measurement in measurements)


def print_tables(measurements: Sequence[Measurement], header: ReportHeader, console: Console) -> None:
    """Print one table per scheme, and the description."""
    for scheme, column_names, rows in build_tables(measurements):
        table = Table(Column(no_wrap=True), *column_names[1:], title=scheme, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(header.description)


def format_markdown(measurements: Sequence[Measurement], header: ReportHeader) -> str:
    """Return the report's page."""
    parts = [f"# headwise bench {header.title}", *header.environment, header.description]
    parts.append(f"![plot]({header.title}.png)")
    for scheme, column_names, rows in build_tables(measurements):
        lines = [column_names, ["---"] * len(column_names), *rows]
        parts += [f"## {scheme}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


def build_tables(measurements: Sequence[Measurement]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield each scheme's name, column names (a column per length) and rows (a row per implementation)."""
    for scheme in unique(x.scheme for x in measurements):
        lengths = unique(x.length for x in measurements if x.scheme == scheme)
        column_names, rows = ["", "errors", *(f"N = {length}" for length in lengths)], []
        for implementation in unique(x.implementation for x in measurements):
            own = [x for x in measurements if (x.scheme, x.implementation) == (scheme, implementation)]
            notes = unique(x.note for x in own if x.note and x.ratio is not None)
            errors = [format_max(x.output_error for x in own), format_max(x.gradient_error for x in own)]
            cells = {x.length: x.summary for x in own}
            label, error_cell = ", ".join([implementation, *notes]), ", ".join(filter(None, errors))
            rows.append([label, error_cell, *(cells.get(length, "") for length in lengths)])
        yield scheme, column_names, rows


def plot(measurements: Sequence[Measurement]) -> Figure:
    """Plot time (top) and memory (bottom) over length, with a column for each scheme."""
    schemes = unique(x.scheme for x in measurements)
    implementations = unique(x.implementation for x in measurements)
    with style.plot_style(max(2.6 * len(schemes), 5.0), 5.4) as figure:
        panels = figure.subplots(2, len(schemes), sharex=True, sharey="row", squeeze=False)
        for column, scheme in enumerate(schemes):
            own = [x for x in measurements if x.scheme == scheme]
            draw_lines(panels[0][column], own, implementations, lambda x: x.ratio)
            draw_lines(panels[1][column], own, implementations, lambda x: x.peak_mib)
            panels[0][column].set_title(scheme)
            panels[1][column].set_xlabel("length N")
        for row in panels:
            low, high = row[0].get_ylim()  # shared by the row
            subs = (1, 2, 5) if high > 5 * low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
            for panel in row:
                panel.yaxis.set_major_locator(LogLocator(subs=subs))
        lengths = unique(x.length for x in measurements)
        panels[0][0].set_xticks(lengths, [str(length) for length in lengths])  # shared by all panels
        for panel in panels[1]:
            panel.tick_params("x", rotation=45)
        panels[0][0].set_ylabel("time relative to SDPA")
        panels[1][0].set_ylabel("peak memory (MiB)")
        lines = {str(line.get_label()): line for panel in panels[0] for line in panel.get_lines()}
        num_columns = max(int(figure.get_figwidth() / 1.8), 1)
        figure.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=num_columns)
    return figure


def draw_lines(
    axes: Axes,
    measurements: Sequence[Measurement],
    implementations: Sequence[str],
    value: Callable[[Measurement], float | None],
) -> None:
    """Draw a line per implementation, on logarithmic axes."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(True)
    for index, implementation in enumerate(implementations):
        points = {x.length: y for x in measurements if x.implementation == implementation and (y := value(x))}
        if points:
            marker, color = style.MARKERS[index % 8], style.PALETTE[index % 8]
            axes.plot(list(points), list(points.values()), label=implementation, marker=marker, color=color)


def unique(values: Iterable[T]) -> list[T]:
    """Return the distinct values in order of appearance."""
    return list(dict.fromkeys(values))


def format_max(errors: Iterable[float | None]) -> str:
    """Return the largest error with one digit, or an empty string if none was measured."""
    measured = [error for error in errors if error is not None]
    return f"{max(measured):.0e}" if measured else ""


def format_digits(value: float) -> str:
    """Return a value with three significant digits: 0.123, 1.23, 12.3, 123, 1234."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
