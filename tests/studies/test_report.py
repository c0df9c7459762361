"""Printed and written reports."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headwise.studies.analysis import Analysis, analyze
from headwise.studies.report import guide_terms, print_analysis, read_curves, write_report
from tests.studies.simulated import regression_runs, simulate_runs


def printed(analysis: Analysis) -> str:
    output = io.StringIO()
    print_analysis(analysis, Console(file=output, width=200))
    return output.getvalue()


def test_printed_analysis_has_tables_warnings_and_sentences(tmp_path: Path) -> None:
    results = regression_runs(tmp_path, {"none": 1.0, "plain": 1.1}, seeds=5)
    text = printed(analyze(results, "none"))
    assert "stars, compared with none" in text
    assert "rmse (lower is better)" in text
    assert "Warning: A permutation test with 5 seeds" in text
    assert "plain is worse than none by 0.1" in text


def test_report_is_one_page_with_tables(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path / "runs", {"none": 0.80, "a_b & c": 0.86}, seeds=6)
    out = tmp_path / "out"
    write_report(analyze(results, "none"), out)
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "table.csv", "table.md", "table.tex"]
    html = (out / "report.html").read_text()
    assert "a_b &amp; c is better than none by" in html
    assert html.count("<img") == 4, "boxes, differences, dev metric, loss"
    assert "peak memory, MiB (process)" in html
    assert "http" not in html.replace("http-equiv", "")
    tex = (out / "table.tex").read_text()
    assert r"a\_b \& c" in tex
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") == 1
    assert "| a_b & c |" in (out / "table.md").read_text()
    baseline, method = csv.DictReader((out / "table.csv").open())
    assert (baseline["method"], method["method"]) == ("none", "a_b & c")
    means = {
        name: np.mean([r.metrics["metrics"]["test"]["accuracy"] for r in results if r.method == name])
        for name in ("none", "a_b & c")
    }
    assert float(method["difference"]) == pytest.approx(100 * (means["a_b & c"] - means["none"]))
    assert baseline["difference"] == ""


def test_names_with_brackets_are_printed_and_do_not_end_a_latex_row(tmp_path: Path) -> None:
    """Methods of guiding-table2 are named [Next] and [Prev]; files can have any name."""
    results = [
        result
        for task in ("a[x].csv", "b[b].csv")
        for result in simulate_runs(tmp_path, {"[x]-y": 0.7, "[Next]": 0.8, "[Prev]": 0.8}, seeds=3, task=task)
    ]
    analysis = analyze(results, "[x]-y")
    text = printed(analysis)
    assert "a[x].csv, compared with [x]-y" in text
    assert "b[b].csv: accuracy, %" in text
    write_report(analysis, tmp_path / "out")
    rows = (tmp_path / "out" / "table.tex").read_text().split(r"\\")[1:]
    assert not any(row.lstrip().startswith(("[", "*")) for row in rows)


def test_csv_names_the_control_of_each_method(tmp_path: Path) -> None:
    results = simulate_runs(tmp_path / "runs", {"bert": 0.7, "roberta": 0.8, "roberta+mdg": 0.86}, seeds=3)
    write_report(analyze(results, "bert", {"roberta+mdg": "roberta"}), tmp_path / "out")
    rows = csv.DictReader((tmp_path / "out" / "table.csv").open())
    assert {row["method"]: row["baseline"] for row in rows} == {
        "bert": "bert",
        "roberta": "bert",
        "roberta+mdg": "roberta",
    }


def test_curves_show_the_task_loss_and_the_guide_separately() -> None:
    logs = [{"epoch": 1.0, "loss": 2.0, "task_loss": 1.5, "guide/First": 5.0, "guide/First/weight": 0.1}]
    method: Any = SimpleNamespace(results={0: SimpleNamespace(metrics={"history": logs})})
    assert read_curves(method, "loss") == [[(1.0, 1.5)]]
    assert guide_terms(method) == {"guide/First"}
    assert read_curves(method, "guide/First") == [[(1.0, 5.0)]]
