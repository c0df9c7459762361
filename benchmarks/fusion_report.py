"""Make a table and a picture from the results of benchmarks/fusion.py.

python benchmarks/fusion_report.py benchmarks/results/2026-11-17-fusion
python benchmarks/fusion_report.py NEW --with OLD OLDER    # the picture also shows what NEW did not measure
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from headwise.bench.fusion import COMPILED, COMPILED_FUSED, FUSED, ORIGINAL
from headwise.inspection import style

#: Families of the picture of memory.
PICTURE_FAMILIES = ("Wav2Vec2-BERT", "Parakeet", "SEW-D")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of fusion.jsonl")
    parser.add_argument("--with", type=Path, nargs="+", default=[], metavar="DIR", dest="older", help="older results")
    arguments = parser.parse_args()
    directory, results = arguments.directory, read_results(arguments.directory)
    (directory / "fusion.md").write_text(build_table(results), encoding="utf-8")
    older = [x for path in reversed(arguments.older) for x in read_results(path)]
    if set(PICTURE_FAMILIES) <= {x.get("family") for x in results if x.get("direction") == "forward+backward"}:
        draw_memory(older + results).savefig(directory / "memory.png", dpi=150, bbox_inches="tight")


def read_results(directory: Path) -> list[dict[str, Any]]:
    """Return the results in a directory."""
    lines = (directory / "fusion.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def build_table(results: list[dict[str, Any]]) -> str:
    """Return tables: the gain of each family and pass at each length, torch.compile, and the longest inputs."""
    shapes: dict[tuple[str, ...], dict[int, dict[str, dict[str, Any]]]] = {}
    for x in results:
        if "direction" in x:
            notes = [f"batch size {x['batch_size']}"] if x["batch_size"] > 1 else []
            notes += filter(None, [x.get("label")])
            key = (COMPILED if has_compiled(x, results) else FUSED, x["family"], ", ".join([x["direction"], *notes]))
            lengths = shapes.setdefault((*key, x["unit"]), {})
            lengths.setdefault(x["length"], {})[x["implementation"]] = x
    lines = []
    for kind in (FUSED, COMPILED):
        rows = []
        for (row_kind, family, passes, unit), lengths in shapes.items():
            short_unit = " s" if unit == "seconds" else " tokens"
            cells = [f"{length:,}{short_unit}: {describe_gain(by_name)}" for length, by_name in lengths.items()]
            rows += [f"| {family} | {passes} | {'; '.join(cells)} |"] * (row_kind == kind)
        lines += (
            ["| family | pass | speed-up and reduction of peak memory |", "|---|---|---|", *rows, ""] if rows else []
        )
    longest: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for x in results:
        if "longest" in x:
            longest.setdefault((x["family"], x["unit"]), {})[x["implementation"]] = x
    if longest:
        lines += ["| family | longest input of a training step: original | fused |", "|---|---|---|"]
    for (family, unit), by_name in longest.items():
        cells = [describe_longest(by_name.get(name), unit) for name in (ORIGINAL, FUSED)]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines).rstrip() + "\n"


def has_compiled(x: dict[str, Any], results: list[dict[str, Any]]) -> bool:
    """Return whether a result was measured beside torch.compile."""
    return any(y["key"] == x["key"] and y.get("implementation") == COMPILED for y in results)


def describe_longest(x: dict[str, Any] | None, unit: str) -> str:
    if x is None:
        return "not measured"
    length = "none" if x["longest"] is None else f"{x['longest']:,} {unit}"
    return f"{length} ({x['note']})" if x["note"] else length


def describe_gain(by_name: dict[str, dict[str, Any]]) -> str:
    """Return the gain of the fused model at one length."""
    original, fused = by_name[ORIGINAL], by_name[FUSED]
    if fused["ms"] is None:
        return f"not measured ({fused['note']})"
    compiled = "".join(describe_compiled(by_name[name]) for name in (COMPILED, COMPILED_FUSED) if name in by_name)
    if original["ms"] is None:
        return (
            f"original {original['note']}, fused {fused['ms']:,.0f} ms and {fused['peak_mib'] / 1024:.1f} GiB{compiled}"
        )
    quartiles = f" ({fused['speedup_low']:,.2f} to {fused['speedup_high']:,.2f})" if "speedup_low" in fused else ""
    if not fused["peak_mib"]:  # of a tiny model on a CPU
        return f"{fused['speedup']:,.2f}×{quartiles}{compiled}"
    memory = original["peak_mib"] / fused["peak_mib"]
    return f"{fused['speedup']:,.2f}×{quartiles}, memory {memory:,.1f}×{compiled}"


def describe_compiled(compiled: dict[str, Any]) -> str:
    """Return the gain of torch.compile of a model."""
    name = compiled["implementation"]
    if compiled["ms"] is None:
        return f" ({name} {compiled['note']})"
    memory = f", {compiled['peak_mib'] / 1024:.1f} GiB" if compiled["peak_mib"] is not None else ""
    if compiled["speedup"] is None:
        return f" ({name} {compiled['ms']:,.0f} ms{memory})"
    return f" ({name} {compiled['speedup']:,.2f}×{memory})"


def draw_memory(results: list[dict[str, Any]]) -> Figure:
    """Draw peak memory in training over the length of audio."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, len(PICTURE_FAMILIES), sharey=True)
    for family, ax in zip(PICTURE_FAMILIES, axes, strict=True):
        for name, color, label in ((ORIGINAL, style.PALETTE[1], "original"), (FUSED, style.PALETTE[0], "fused")):
            points = sorted(
                {
                    x["length"] / 60: None if x["peak_mib"] is None else x["peak_mib"] / 1024
                    for x in results
                    if x.get("family") == family
                    and x.get("direction") == "forward+backward"
                    and x.get("implementation") == name
                    and x.get("batch_size") == 1
                }.items()
            )
            measured = [(minutes, memory) for minutes, memory in points if memory is not None]
            ax.plot(*zip(*measured, strict=True), "o-", color=color, label=label)
            for minutes, memory in points:
                if memory is None:
                    ax.plot(minutes, 139, "x", color=color, clip_on=False)
        ax.set(xscale="log", yscale="log", title=family, xlabel="minutes of audio", xticks=[1 / 6, 1, 5, 20])
        ax.set_xticklabels(["⅙", "1", "5", "20"])
        ax.minorticks_off()
        ax.axhline(139, color=style.PALETTE[-1], linewidth=0.8, linestyle=":")
    axes[0].set_ylabel("peak memory of a training step, GiB")
    axes[0].text(1 / 6, 150, "memory of the GPU (×: out of memory)", fontsize=6)
    axes[0].legend(loc="lower right", frameon=False)
    return figure


if __name__ == "__main__":
    main()
