"""Figures of trained models: learned distance weights, attention maps, and their principal components."""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import stats

from headwise.attention import DistanceAware
from headwise.errors import UserError
from headwise.inspection import build_viewer, draw_averages, draw_components, draw_sorted
from headwise.inspection.inspected_model import InspectedModel
from headwise.inspection.measures import to_numpy
from headwise.inspection.output_dir import cell_labels, find_schemes, plot_selected_heads, stack_maps
from headwise.inspection.viewer import Viewer
from headwise.studies.plan import Result
from headwise.studies.report import CaptionedFigure
from headwise.studies.reproduction.data_statistics import mean_length
from headwise.studies.summary import format_p_equation
from headwise.studies.tables import TextTable
from headwise.training.core.run_dir import CONFIG
from headwise.training.inspect import open_model
from headwise.training.text.config import TextConfig
from headwise.training.text.data import load_data

#: The number of words of a text whose maps are drawn: enough to see a pattern, and few enough for legible labels.
MIN_WORDS, MAX_WORDS = 5, 24

#: Names of the parts of a recommender.
PART_NAMES = {"titles": "words of titles", "clicks": "clicked news"}


def draw_learned_weights(results: Sequence[Result]) -> Iterator[CaptionedFigure]:
    """Draw w and v of all heads in ascending order, as means over seeds (figures 6 and 7 of Wu et al. 2021)."""
    for task in dict.fromkeys(result.task for result in results):
        schemes = read_schemes([result for result in results if result.task == task])
        parts = [part for part in schemes[0] if all(part in run for run in schemes)]
        for part in parts:
            name = PART_NAMES.get(part, part)
            caption = f"{task}{f', {name}' if name else ''}: means and standard deviations over {len(schemes)} runs"
            yield draw_sorted({name or "distance-aware": [run[part] for run in schemes]}), caption


def read_schemes(results: Sequence[Result]) -> list[dict[str, list[DistanceAware]]]:
    """Return the distance-aware layers of each run, by the part of its model."""
    return [find_schemes(open_run(result)) for result in results]


def open_run(result: Result) -> InspectedModel:
    """Load the model of a run under the name of its method.

    Raises:
        UserError: the model was not kept.
    """
    if not any(result.run_dir.glob("*.safetensors")):
        raise UserError(f"{result.run_dir}: the model was not kept; run the study again with --keep-models")
    return open_model(str(result.run_dir), result.method)


def draw_attention(results: Sequence[Result]) -> Iterator[CaptionedFigure]:
    """Draw maps of the same heads of all methods, for a short text of test (figure 8 of Wu et al. 2021)."""
    for task, viewer in build_viewers(results):
        figure = plot_selected_heads(viewer.names, viewer.examples[0])
        yield figure, f"{task}: heads from the lowest to the highest w, for a text of test"


def draw_mean_attention(results: Sequence[Result]) -> Iterator[CaptionedFigure]:
    """Draw the mean map of all heads of each method (figure 4 of Wang et al. 2022)."""
    for task, viewer in build_viewers(results):
        passages = viewer.examples[0].passages
        maps = {name: stack_maps(passage) for name, passage in zip(viewer.names, passages, strict=True)}
        yield draw_averages(maps, cell_labels(passages[0])), f"{task}: mean of all heads, for a text of test"


def draw_principal_components(results: Sequence[Result]) -> Iterator[CaptionedFigure]:
    """Draw the maps of all heads of each method in two principal components (figure 5 of Wang et al. 2022)."""
    for task, viewer in build_viewers(results):
        passages = viewer.examples[0].passages
        maps = {name: stack_maps(passage) for name, passage in zip(viewer.names, passages, strict=True)}
        yield draw_components(maps, len(passages[0].layers)), f"{task}: one point per head, for a text of test"


def build_viewers(results: Sequence[Result]) -> Iterator[tuple[str, Viewer]]:
    """Yield, for each task, the attention of the first run of each method on a text of test."""
    for task in dict.fromkeys(result.task for result in results):
        runs: dict[str, Result] = {}
        for result in sorted((x for x in results if x.task == task), key=lambda x: x.seed):
            runs.setdefault(result.method, result)
        texts = choose_texts(next(iter(runs.values())))
        yield task, build_viewer([open_run(result) for result in runs.values()], [texts])


def choose_texts(result: Result) -> tuple[str, ...]:
    """Return the first text, or pair of texts, of test with a suitable number of words; else the first one."""
    examples = load_data(TextConfig.load(result.run_dir / CONFIG)).examples
    rows = examples.splits.get("test") or examples.splits["dev"]
    names = [name for name in ("text", "pair") if name in rows.column_names]
    texts = [tuple(row[name] for name in names) for row in rows.select(range(min(len(rows), 1000)))]
    sizes = [sum(len(text.split()) for text in row) for row in texts]
    return next((row for row, size in zip(texts, sizes, strict=True) if MIN_WORDS <= size <= MAX_WORDS), texts[0])


def build_sign_table(results: Sequence[Result]) -> TextTable:
    """Return the signs of w by task, and their rank correlation with the length of texts (footnote 7 of Wu et al.).

    Args:
        results: the runs of distance-aware attention.
    """
    lengths: list[float] = []
    shares: list[float] = []  # of each task, mean over runs: runs of a task are not independent of each other
    rows = []
    for task in dict.fromkeys(result.task for result in results):
        task_results = [result for result in results if result.task == task]
        length = mean_length(load_data(TextConfig.load(task_results[0].run_dir / CONFIG)).examples.splits["train"])
        runs = read_schemes(task_results)
        values = [np.concatenate([to_numpy(x.w) for layers in run.values() for x in layers]) for run in runs]
        task_shares = [float((w > 0).mean()) for w in values]
        lengths.append(length)
        shares.append(float(np.mean(task_shares)))
        mean_w = float(np.concatenate(values).mean())
        share = f"{100 * shares[-1]:.0f} ± {100 * np.std(task_shares):.0f}"
        rows.append((task, f"{length:.0f}", share, f"{mean_w:+.3f}".replace("-", "−"), str(len(task_shares))))
    title = f"length of texts and signs of w; rank correlation over tasks: {describe_correlation(lengths, shares)}"
    return TextTable(title, ("task", "mean length", "heads with w > 0, %", "mean w", "runs"), tuple(rows))


def describe_correlation(x: Sequence[float], y: Sequence[float]) -> str:
    """Return the rank correlation with the p-value of a permutation test, exact for up to 7 pairs.

    >>> describe_correlation([10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])
    'ρ = +1.00, p = 0.083'
    >>> describe_correlation([10, 20], [0.5, 0.5])
    'undefined'
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return "undefined"
    test = stats.permutation_test(
        (np.asarray(x),),
        lambda permuted: stats.spearmanr(permuted, y).statistic,
        permutation_type="pairings",
        n_resamples=9999,
        random_state=0,  # `rng` from SciPy 1.15 on
    )
    return f"ρ = {test.statistic:+.2f}, {format_p_equation(test.pvalue)}"
