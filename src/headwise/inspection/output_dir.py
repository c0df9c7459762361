"""The output directory of an inspection: the page, figures as PNG and SVG, tables as CSV and JSON."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from headwise.attention import DistanceAware
from headwise.csv_cells import quote_record
from headwise.inspection import style
from headwise.inspection.head_statistics import MEASURES, HeadStatistics
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.map_plots import draw_averages, draw_components, draw_maps
from headwise.inspection.measures import distance_bin_names
from headwise.inspection.passages import PassageAttention
from headwise.inspection.quantize import group_size
from headwise.inspection.scheme_plots import draw_coefficients, draw_sigmoids, draw_sorted, format_signed
from headwise.inspection.statistics_plots import draw_distance_shares, draw_measures, draw_received, draw_similarity
from headwise.inspection.viewer import Example, Viewer

PAGE, FIGURES = "page.html", "figures"
MAX_FIGURE_TOKENS = 30
MAX_FIGURE_HEADS = 4


def write_inspection(viewer: Viewer, models: Sequence[InspectedModel], out_dir: Path) -> None:
    """Write the page, its figures and its tables.

    Args:
        viewer: the contents of the page.
        models: the models of the page.
        out_dir: the output directory; it is created if necessary.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    viewer.write(out_dir / PAGE)  # first: it refuses NaN, which figures would draw as empty cells
    write_figures(plot_all(viewer, models), out_dir)
    write_text_tables(viewer, out_dir)
    if viewer.statistics:
        write_tables(viewer.statistics, out_dir)


def write_figures(figures: Iterable[tuple[str, Figure]], out_dir: Path) -> None:
    """Write named figures as PNG and SVG."""
    (out_dir / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, figure in figures:
        style.save_figure(figure, out_dir / FIGURES / f"{name}.png")
        figure.set_layout_engine("none")  # the layout was computed for the PNG
        style.save_figure(figure, out_dir / FIGURES / f"{name}.svg")


def plot_all(viewer: Viewer, models: Sequence[InspectedModel]) -> Iterator[tuple[str, Figure]]:
    """Yield all figures for a page, with their names."""
    yield from plot_learned_parameters({model.name: [model] for model in models})
    for number, example in enumerate(viewer.examples, 1):
        suffix = f"-{number}" if len(viewer.examples) > 1 else ""
        yield f"maps{suffix}", plot_selected_heads(viewer.names, example)
        passages = example.passages
        maps = {name: stack_maps(passage) for name, passage in zip(viewer.names, passages, strict=True)}
        keys = cell_labels(passages[0], keys=True)
        yield f"average{suffix}", draw_averages(maps, cell_labels(passages[0]), key_tokens=keys)
        shares = {name: stack_shares(passage) for name, passage in zip(viewer.names, passages, strict=True)}
        if all(x is not None for x in shares.values()) and len(passages[0].tokens) > 1:
            yield f"distances{suffix}", draw_distance_shares({name: x for name, x in shares.items() if x is not None})
        if sum(map(len, maps.values())) > 2 and len(passages[0].tokens) > 1:
            yield f"components{suffix}", draw_components(maps, len(passages[0].layers))
    if viewer.statistics:
        yield "measures", draw_measures(viewer.statistics)
        distances = {statistics.name: statistics.distance_shares for statistics in viewer.statistics}
        yield "distance-shares", draw_distance_shares(distances)
        yield "received", draw_received(viewer.statistics)
        yield "similarity", draw_similarity(viewer.statistics)


def plot_learned_parameters(models: Mapping[str, Sequence[InspectedModel]]) -> Iterator[tuple[str, Figure]]:
    """Yield figures of the learned parameters of distance-aware heads; none for models without such heads.

    Args:
        models: one or more runs of each model, such as one for each seed. Sorted values are means over the runs.
    """
    schemes: dict[str, list[list[DistanceAware]]] = {}
    for name, runs in models.items():
        for run in runs:
            for part, layers in find_schemes(run).items():
                schemes.setdefault(f"{name}, {part}" if part else name, []).append(layers)
    single_runs = [layers for runs in schemes.values() for layers in runs]
    for number, layers in enumerate(single_runs, 1):
        suffix = f"-{number}" if len(single_runs) > 1 else ""
        if all(layer.v is not None for layer in layers):
            yield f"sigmoids{suffix}", draw_sigmoids(layers)
        yield f"coefficients{suffix}", draw_coefficients(layers)
    if schemes:
        yield "sorted", draw_sorted(schemes)


def find_schemes(model: InspectedModel) -> dict[str, list[DistanceAware]]:
    """Return a model's distance-aware layers by submodule, such as a translator's encoder; "" if there is only one."""
    parts: dict[str, list[DistanceAware]] = {}
    for name, module in (model.part_of or model.model).named_modules():
        if isinstance(module, DistanceAware):
            parts.setdefault(name.partition(".")[0], []).append(module)
    return {"": next(iter(parts.values()))} if len(parts) == 1 else parts


def stack_maps(passage: PassageAttention) -> NDArray[np.float32]:
    """Return the maps of all heads, layer by layer, (L · H, groups, groups)."""
    return np.stack([layer.dequantize(head) for layer in passage.layers for head in range(len(layer.cells))])


def stack_shares(passage: PassageAttention) -> NDArray[np.float32] | None:
    """Return the shares of attention by distance, (L, H, D); None for cross-attention."""
    shares = [layer.distance_shares for layer in passage.layers if layer.distance_shares is not None]
    return np.stack(shares) if shares else None


def cell_labels(passage: PassageAttention, *, keys: bool = False) -> list[str]:
    """Return the label of each row of a map, or of each column: its token, or the first token of its group."""
    tokens = passage.key_tokens or passage.tokens if keys else passage.tokens
    size = group_size(len(tokens))
    return list(tokens) if size == 1 else [f"{token} …" for token in tokens[::size]]


def plot_selected_heads(names: Sequence[str], example: Example) -> Figure:
    """Plot the maps of some heads with their tokens, the same heads for each model (figure 8 of Wu et al. 2021)."""
    tokens = cell_labels(example.passages[0])[:MAX_FIGURE_TOKENS]
    keys = cell_labels(example.passages[0], keys=True)[:MAX_FIGURE_TOKENS]
    distance_aware = (passage for passage in example.passages if passage.layers[0].w is not None)
    heads = select_heads(next(distance_aware, example.passages[0]))
    maps = [
        np.stack([passage.layers[layer].dequantize(head)[: len(tokens), : len(keys)] for layer, head in heads])
        for passage in example.passages
    ]
    titles = [[head_title(passage, layer, head) for layer, head in heads] for passage in example.passages]
    return draw_maps(maps, tokens, list(names), heads=titles, key_tokens=keys)


def head_title(passage: PassageAttention, layer: int, head: int) -> str:
    """Return the layer, the number and the learned w of a head."""
    w = passage.layers[layer].w
    w_label = "" if w is None else f", w = {format_signed(float(w[head]))}"
    return f"layer {layer}, head {head}{w_label}"


def select_heads(passage: PassageAttention) -> list[tuple[int, int]]:
    """Return some heads (layer, head), evenly spaced by w, else by mean distance, else (cross-attention) by entropy."""
    candidates = ([getattr(layer, name) for layer in passage.layers] for name in ("w", "distance", "entropy"))
    values = np.stack(next(x for x in candidates if all(value is not None for value in x)))
    order = np.argsort(values, axis=None)
    ranks = np.unique(np.linspace(0, len(order) - 1, min(MAX_FIGURE_HEADS, len(order))).round().astype(int))
    return [(int(index) // values.shape[1], int(index) % values.shape[1]) for index in order[ranks]]


def write_text_tables(viewer: Viewer, out_dir: Path) -> None:
    """Write `distances.csv`, the shares of attention by distance in each text, and `alignments.csv` of translators."""
    distances: list[dict[str, Any]] = []
    alignments: list[dict[str, Any]] = []
    for example in viewer.examples:
        for name, passage in zip(viewer.names, example.passages, strict=True):
            source = {"text": example.row + 1, "part": passage.title, "model": name}
            distances += [source | row for row in distance_rows(stack_shares(passage))]
            alignments += [source | row for row in alignment_rows(passage)]
    for file_name, rows in (("distances.csv", distances), ("alignments.csv", alignments)):
        if rows:
            write_csv(out_dir / file_name, rows)


def distance_rows(shares: NDArray[np.floating[Any]] | None) -> Iterator[dict[str, Any]]:
    """Yield the share of attention of each head and distance (L, H, D), one row for each."""
    if shares is None:
        return
    names = distance_bin_names(shares.shape[2] // 2)
    for layer, heads in enumerate(shares):
        for head, values in enumerate(heads):
            for name, value in zip(names, values, strict=True):
                direction, _, tokens = name.partition("_")
                yield {
                    "layer": layer,
                    "head": head,
                    "direction": direction,
                    "tokens": tokens or "0",
                    "share": f"{value:.6g}",
                }


def alignment_rows(passage: PassageAttention) -> Iterator[dict[str, Any]]:
    """Yield the source token that each target token attends to most: for all layers, and for each layer."""
    alignment, keys = passage.alignment, passage.key_tokens
    if alignment is None or keys is None:
        return
    layers = [("all", alignment.mean.argmax(axis=1), alignment.mean.max(axis=1))]
    layers += [
        (str(number), *layer) for number, layer in enumerate(zip(alignment.sources, alignment.weights, strict=True))
    ]
    for layer, sources, weights in layers:
        for target, (source, weight) in enumerate(zip(sources, weights, strict=True)):
            yield {
                "layer": layer,
                "target": target,
                "target_token": passage.tokens[target],
                "source": int(source),
                "source_token": keys[source],
                "weight": f"{weight:.6g}",
            }


def write_tables(models: Sequence[HeadStatistics], out_dir: Path) -> None:
    """Write `heads.csv`, `distance-shares.csv` and `received.csv`, a similarity matrix for each model, and all of it
    as `statistics.json`."""
    write_csv(out_dir / "heads.csv", [row for statistics in models for row in head_rows(statistics)])
    write_csv(
        out_dir / "received.csv",
        [
            {"model": statistics.name, "layer": layer, "head": head}
            | {f"bin_{number}": f"{value:.6g}" for number, value in enumerate(values, 1)}
            for statistics in models
            for layer, heads in enumerate(statistics.received)
            for head, values in enumerate(heads)
        ],
    )
    shares = [
        {"model": statistics.name} | row for statistics in models for row in distance_rows(statistics.distance_shares)
    ]
    write_csv(out_dir / "distance-shares.csv", shares)
    for number, statistics in enumerate(models, 1):
        num_heads = statistics.shape[1]
        names = [f"{index // num_heads}.{index % num_heads}" for index in range(len(statistics.clusters))]
        rows = [
            {"head": name} | dict(zip(names, (f"{value:.6g}" for value in values), strict=True))
            for name, values in zip(names, statistics.similarity, strict=True)
        ]
        write_csv(out_dir / (f"similarity-{number}.csv" if len(models) > 1 else "similarity.csv"), rows)
    content = json.dumps([to_json(statistics) for statistics in models], indent=2, ensure_ascii=False)
    (out_dir / "statistics.json").write_text(content + "\n", encoding="utf-8")


def head_rows(statistics: HeadStatistics) -> Iterator[dict[str, Any]]:
    """Yield the rows of `heads.csv`, one for each head."""
    num_layers, num_heads = statistics.shape
    for layer in range(num_layers):
        for head in range(num_heads):
            row: dict[str, Any] = {"model": statistics.name, "layer": layer, "head": head}
            row |= {name: f"{statistics.measures[name][layer, head]:.6g}" for name in MEASURES}
            row["cluster"] = int(statistics.clusters[layer * num_heads + head])
            for name, values in (("w", statistics.w), ("v", statistics.v)):
                row[name] = "" if values is None else f"{values[layer, head]:.6g}"
            yield row


def to_json(statistics: HeadStatistics) -> dict[str, Any]:
    """Return the entry of a model in `statistics.json`."""
    return {
        "model": statistics.name,
        "texts": statistics.texts,
        "tokens": statistics.tokens,
        "rows_without_text": statistics.empty,
        "measures": {
            name: {"description": MEASURES[name], "values": x.round(6).tolist()}
            for name, x in statistics.measures.items()
        },
        "distance_bins": distance_bin_names(statistics.distance_shares.shape[2] // 2),
        "distance_shares": statistics.distance_shares.round(6).tolist(),
        "received": statistics.received.round(6).tolist(),
        "similarity": [[None if np.isnan(x) else round(float(x), 6) for x in row] for row in statistics.similarity],
        "clusters": statistics.clusters.tolist(),
        "w": None if statistics.w is None else statistics.w.round(6).tolist(),
        "v": None if statistics.v is None else statistics.v.round(6).tolist(),
    }


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(map(quote_record, rows))
