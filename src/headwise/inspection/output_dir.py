"""A folder of what there is to see: the page, figures as PNG and SVG, tables as CSV and JSON."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headwise.attention import DistanceAware
from headwise.inspection import style
from headwise.inspection.attention_maps import Reading
from headwise.inspection.head_statistics import MEASURES, HeadStatistics
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.map_plots import draw_averages, draw_components, draw_maps
from headwise.inspection.quantize import group_size
from headwise.inspection.scheme_plots import draw_coefficients, draw_sigmoids, draw_sorted, format_signed
from headwise.inspection.statistics_plots import draw_measures, draw_received, draw_similarity
from headwise.inspection.viewer import Example, Viewer

PAGE, FIGURES = "page.html", "figures"
MOST_TOKENS = 30  # of a text in a figure of maps
HEADS_SHOWN = 4


def write_inspection(viewer: Viewer, subjects: Sequence[InspectedModel], folder: Path) -> None:
    """The page, its figures and its tables.

    Args:
        viewer: the page.
        subjects: its models.
        folder: where to write; it is made if it is not there.
    """
    write_figures(figures(viewer, subjects), folder)
    viewer.write(folder / PAGE)
    if viewer.statistics:
        write_tables(viewer.statistics, folder)


def write_figures(drawn: Iterable[tuple[str, Figure]], folder: Path) -> None:
    """Figures by their names, as PNG and SVG."""
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, figure in drawn:
        style.save_figure(figure, folder / FIGURES / f"{name}.png")
        figure.set_layout_engine("none")  # it is laid out by now
        style.save_figure(figure, folder / FIGURES / f"{name}.svg")


def figures(viewer: Viewer, subjects: Sequence[InspectedModel]) -> Iterator[tuple[str, Figure]]:
    """Every figure that there is something to draw for, and its name."""
    yield from plot_learned_parameters({subject.name: [subject] for subject in subjects})
    for number, example in enumerate(viewer.examples, 1):
        which = f"-{number}" if len(viewer.examples) > 1 else ""
        yield f"maps{which}", of_heads(viewer.names, example)
        maps = {name: all_maps(reading) for name, reading in zip(viewer.names, example.readings, strict=True)}
        yield f"average{which}", draw_averages(maps, labels(example.readings[0]))
        if sum(map(len, maps.values())) > 2 and len(example.readings[0].tokens) > 1:
            yield f"components{which}", draw_components(maps, len(example.readings[0].layers))
    if viewer.statistics:
        yield "measures", draw_measures(viewer.statistics)
        yield "received", draw_received(viewer.statistics)
        yield "similarity", draw_similarity(viewer.statistics)


def plot_learned_parameters(models: Mapping[str, Sequence[InspectedModel]]) -> Iterator[tuple[str, Figure]]:
    """Figures of what distance-aware heads have learned, which need no text; none of models without such heads.

    Args:
        models: one or more runs of each, such as one for each seed; sorted values are means over them.
    """
    learned: dict[str, list[list[DistanceAware]]] = {}
    for name, runs in models.items():
        for subject in runs:
            for part, layers in find_schemes(subject).items():
                learned.setdefault(f"{name}, {part}" if part else name, []).append(layers)
    single = [layers for runs in learned.values() for layers in runs]
    for number, layers in enumerate(single, 1):
        which = f"-{number}" if len(single) > 1 else ""
        if all(layer.v is not None for layer in layers):
            yield f"sigmoids{which}", draw_sigmoids(layers)
        yield f"coefficients{which}", draw_coefficients(layers)
    if learned:
        yield "sorted", draw_sorted(learned)


def find_schemes(subject: InspectedModel) -> dict[str, list[DistanceAware]]:
    """A model's distance-aware layers by the part that they are in, such as a translator's encoder; "" is all of it."""
    found: dict[str, list[DistanceAware]] = {}
    for place, module in (subject.part_of or subject.model).named_modules():
        if isinstance(module, DistanceAware):
            found.setdefault(place.partition(".")[0], []).append(module)
    return {"": next(iter(found.values()))} if len(found) == 1 else found


def all_maps(reading: Reading) -> NDArray[np.float32]:
    """The maps of all heads, layer after layer, (L · H, cells, cells)."""
    return np.stack([layer.map(head) for layer in reading.layers for head in range(len(layer.cells))])


def labels(reading: Reading) -> list[str]:
    """A label for each cell: its token, or the first of its group."""
    size = group_size(len(reading.tokens))
    return list(reading.tokens) if size == 1 else [f"{token} …" for token in reading.tokens[::size]]


def of_heads(names: Sequence[str], example: Example) -> Figure:
    """Maps of some heads with their tokens, the same heads of every model (figure 8 of Wu et al.)."""
    few = labels(example.readings[0])[:MOST_TOKENS]
    learned = (reading for reading in example.readings if reading.layers[0].w is not None)
    chosen = telling_heads(next(learned, example.readings[0]))
    maps = [
        np.stack([reading.layers[layer].map(head)[: len(few), : len(few)] for layer, head in chosen])
        for reading in example.readings
    ]
    titles = [[titled(reading, layer, head) for layer, head in chosen] for reading in example.readings]
    return draw_maps(maps, few, list(names), heads=titles)


def titled(reading: Reading, layer: int, head: int) -> str:
    w = reading.layers[layer].w
    told = "" if w is None else f", w = {format_signed(float(w[head]))}"
    return f"layer {layer}, head {head}{told}"


def telling_heads(reading: Reading) -> list[tuple[int, int]]:
    """Some heads that differ: from the lowest to the highest w, or from those that look near to those that look far."""
    by_w = all(layer.w is not None for layer in reading.layers)
    values = np.stack([layer.w if by_w and layer.w is not None else layer.distance for layer in reading.layers])
    order = np.argsort(values, axis=None)
    places = np.unique(np.linspace(0, len(order) - 1, min(HEADS_SHOWN, len(order))).round().astype(int))
    return [(int(at) // values.shape[1], int(at) % values.shape[1]) for at in order[places]]


def write_tables(models: Sequence[HeadStatistics], folder: Path) -> None:
    """heads.csv, a row for each head; received.csv; a similarity matrix for each model; all of it as JSON."""
    write_csv(folder / "heads.csv", [row for found in models for row in rows_of(found)])
    write_csv(
        folder / "received.csv",
        [
            {"model": found.name, "layer": layer, "head": head}
            | {f"place_{place + 1}": f"{value:.6g}" for place, value in enumerate(values)}
            for found in models
            for layer, own in enumerate(found.received)
            for head, values in enumerate(own)
        ],
    )
    for number, found in enumerate(models, 1):
        heads = found.shape[1]
        names = [f"{at // heads}.{at % heads}" for at in range(len(found.clusters))]
        rows = [
            {"head": name} | dict(zip(names, (f"{value:.6g}" for value in line), strict=True))
            for name, line in zip(names, found.similarity, strict=True)
        ]
        write_csv(folder / (f"similarity-{number}.csv" if len(models) > 1 else "similarity.csv"), rows)
    told = json.dumps([as_dict(found) for found in models], indent=2, ensure_ascii=False)
    (folder / "statistics.json").write_text(told + "\n", encoding="utf-8")


def rows_of(found: HeadStatistics) -> Iterator[dict[str, Any]]:
    layers, heads = found.shape
    for layer in range(layers):
        for head in range(heads):
            row: dict[str, Any] = {"model": found.name, "layer": layer, "head": head}
            row |= {name: f"{found.measures[name][layer, head]:.6g}" for name in MEASURES}
            row["cluster"] = int(found.clusters[layer * heads + head])
            for name, learned in (("w", found.w), ("v", found.v)):
                row[name] = "" if learned is None else f"{learned[layer, head]:.6g}"
            yield row


def as_dict(found: HeadStatistics) -> dict[str, Any]:
    return {
        "model": found.name,
        "texts": found.texts,
        "tokens": found.tokens,
        "rows_without_text": found.empty,
        "measures": {
            name: {"about": MEASURES[name], "values": x.round(6).tolist()} for name, x in found.measures.items()
        },
        "received": found.received.round(6).tolist(),
        "similarity": [[None if np.isnan(x) else round(float(x), 6) for x in row] for row in found.similarity],
        "clusters": found.clusters.tolist(),
        "w": None if found.w is None else found.w.round(6).tolist(),
        "v": None if found.v is None else found.v.round(6).tolist(),
    }


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
