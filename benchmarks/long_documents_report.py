"""Tables and a plot of the study of long documents (`benchmarks/long_documents.py`).

    python benchmarks/long_documents_report.py imdb.jsonl adapted.jsonl --out results

The files are the results of one set. Every cell is compared with `truncate@512`, with TF-IDF, which reads whole texts,
and, if it changes the scheme or the positions of `tile`, with `tile` at the same number of tokens. Differences are
paired over seeds. p-values have Holm's correction for the comparisons of a column. "No difference" is the result of an
equivalence test.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from long_documents import BASE_LENGTH, METHODS, Trial
from matplotlib.figure import Figure

from headwise.studies.statistics import ALPHA, equivalence_test, holm_correction, t_interval, t_test
from headwise.studies.verdicts import Verdict

Cell = tuple[str, int]

TFIDF, TRUNCATE = ("tfidf", BASE_LENGTH), ("truncate", BASE_LENGTH)


class Results(NamedTuple):
    """The results of a set.

    Args:
        scores: of each cell and seed, the accuracy on test in percent.
        rates: of each cell, the learning rate that was chosen on dev.
        costs: of each cell, the milliseconds of training for each text and the peak memory.
    """

    scores: dict[Cell, dict[int, float]]
    rates: dict[Cell, float]
    costs: dict[Cell, dict[str, float]]


def read_results(paths: Sequence[Path]) -> Results:
    results = Results({}, {}, {})
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "cost" in record:
                cost = record["cost"]
                results.costs[cost.pop("method"), cost.pop("length")] = cost
                continue
            trial = Trial(**record["trial"])
            if not trial.is_tuning:
                cell = trial.method, trial.length
                results.scores.setdefault(cell, {})[trial.seed] = 100 * record["result"]["test"]
                results.rates[cell] = trial.rate
    return results


def find_tile(cell: Cell) -> Cell | None:
    """Return the cell of `tile` that a cell is compared with, if it is one of its variants."""
    method, length = cell
    is_variant = METHODS[method].positions is not None and method != "tile"
    return ("tile" if length > BASE_LENGTH else "truncate", length) if is_variant else None


def compare(results: Results, pairs: Sequence[tuple[Cell, Cell | None]], margin: float) -> dict[Cell, str]:
    """Return what the table says about each cell and its baseline."""
    differences = {}
    for cell, baseline in pairs:
        ours, theirs = results.scores[cell], results.scores.get(baseline, {}) if baseline else {}
        seeds = sorted(ours.keys() & theirs.keys())
        if baseline != cell and len(seeds) > 1:
            differences[cell] = np.array([ours[seed] - theirs[seed] for seed in seeds])
    p_values = holm_correction([t_test(x) for x in differences.values()])
    texts = {}
    for (cell, x), p in zip(differences.items(), p_values, strict=True):
        low, high = t_interval(x)
        if p < ALPHA:
            verdict = Verdict.BETTER if x.mean() > 0 else Verdict.WORSE
        else:
            verdict = Verdict.NO_DIFFERENCE if equivalence_test(x, margin) < ALPHA else Verdict.UNDECIDED
        texts[cell] = f"{x.mean():+.1f} [{low:.1f}, {high:.1f}], {verdict}"
    return texts


def build_table(results: Results, margin: float) -> str:
    """Return a Markdown table with a row for each cell."""
    cells = sorted(results.scores, key=lambda cell: (cell[1], list(METHODS).index(cell[0])))
    columns = {
        "truncate@512": compare(results, [(cell, TRUNCATE) for cell in cells], margin),
        "TF-IDF": compare(results, [(cell, TFIDF) for cell in cells], margin),
        "tile, as many tokens": compare(results, [(cell, find_tile(cell)) for cell in cells], margin),
    }
    header = ["method", "tokens", "rate", "accuracy", *(f"difference from {name}" for name in columns)]
    header += ["ms per text", "peak MiB", "seeds"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for cell in cells:
        scores, cost = np.array(list(results.scores[cell].values())), results.costs.get(cell, {})
        spread = f" ± {scores.std(ddof=1):.1f}" if len(scores) > 1 else ""
        row: list[Any] = [cell[0], "all" if cell == TFIDF else f"{cell[1]:,}"]
        row += [f"{results.rates[cell]:g}", f"{scores.mean():.1f}{spread}"]
        row += [texts.get(cell, "") for texts in columns.values()]
        row += [f"{cost[name]:.3g}" if name in cost else "" for name in ("ms_per_text", "peak_mib")]
        lines.append(f"| {' | '.join([*row, str(len(scores))])} |")
    return "\n".join(lines) + "\n"


def draw(results: Results) -> Figure:
    """Draw accuracy against the cost of training, with the error bars of the mean."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    markers = dict(zip(sorted({length for _, length in results.scores}), "os^Dv", strict=False))
    for cell, by_seed in results.scores.items():
        scores = np.array(list(by_seed.values()))
        if cell == TFIDF:
            axes.axhline(scores.mean(), color="gray", linestyle="--", label="TF-IDF")
        elif cell in results.costs:
            x, error = results.costs[cell]["ms_per_text"], scores.std(ddof=1) / len(scores) ** 0.5
            axes.errorbar(x, scores.mean(), error, fmt=markers[cell[1]], capsize=2, color="tab:blue")
            axes.annotate(f"{cell[0]} {cell[1]:,}", (x, scores.mean()), (4, 4), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", xlabel="training, ms per text", ylabel="accuracy on test, %")
    if TFIDF in results.scores:
        axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="output of long_documents.py")
    parser.add_argument("--out", type=Path, default=Path("."), help="directory of table.md and cost.png")
    parser.add_argument("--margin", type=float, default=1.0, help="points that count as no difference (default: 1)")
    arguments = parser.parse_args()
    results = read_results(arguments.results)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = build_table(results, arguments.margin)
    (arguments.out / "table.md").write_text(table, encoding="utf-8")
    print(table)
    if results.costs:
        draw(results).savefig(arguments.out / "cost.png", dpi=150)


if __name__ == "__main__":
    main()
