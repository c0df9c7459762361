"""Table and plot of the study of long documents (`benchmarks/long_documents.py`).

python benchmarks/long_documents_report.py long.jsonl --out results
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

#: Of `benchmarks/long_documents.py`.
BASE_LENGTH, FIRST_TUNING_SEED = 512, 1000


def write_report(path: Path, out: Path) -> None:
    """Write a table, and a plot of accuracy against the time of training."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    scores: dict[tuple[str, int], dict[int, dict[str, float]]] = {}
    for record in records:
        trial = record["trial"]
        if trial["seed"] < FIRST_TUNING_SEED:
            runs = scores.setdefault((trial["method"], trial["length"]), {})
            runs[trial["seed"]] = {"rate": trial["rate"]} | record["result"]
    baseline = scores.get(("truncate", BASE_LENGTH), {})
    lines = [
        "| method | tokens | learning rate | accuracy, % | difference from truncate | p | seconds | peak MiB | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    points = []
    for (method, length), runs in scores.items():
        test = 100 * np.array([run["test"] for run in runs.values()])
        seconds, peak = (np.mean([run.get(name, np.nan) for run in runs.values()]) for name in ("seconds", "peak_mib"))
        paired = [seed for seed in runs if seed in baseline]
        difference, p = "", ""
        if len(paired) > 1 and method != "truncate":
            ours, theirs = ([100 * x[seed]["test"] for seed in paired] for x in (runs, baseline))
            difference, p = f"{np.mean(np.subtract(ours, theirs)):+.2f}", f"{ttest_rel(ours, theirs).pvalue:.3f}"
        spread = f" ± {test.std(ddof=1):.2f}" if len(test) > 1 else ""
        rate = next(iter(runs.values()))["rate"]
        lines.append(
            f"| {method} | {length} | {rate:g} | {test.mean():.2f}{spread} | {difference} | {p} | {seconds:.1f} | "
            f"{peak:.0f} | {len(runs)} |"
        )
        points.append((seconds, test.mean(), f"{method} {length}"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for seconds, accuracy, label in points:
        axes.scatter(seconds, accuracy)
        axes.annotate(label, (seconds, accuracy), fontsize=8, xytext=(3, 3), textcoords="offset points")
    axes.set(xscale="log", xlabel="seconds of training", ylabel="accuracy on test, %")
    figure.savefig(out / "cost.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="output of long_documents.py")
    parser.add_argument("--out", type=Path, default=Path("."), help="directory of table.md and cost.png")
    arguments = parser.parse_args()
    write_report(arguments.results, arguments.out)


if __name__ == "__main__":
    main()
