"""`--long-text`: texts that are longer than the model's input."""

import csv
import random
from pathlib import Path

import pytest

from headwise.training.text.long_text import cut_middle, encode_windows, pool_windows
from tests.training.conftest import BAD, GOOD, OTHERS, Headwise, write


@pytest.fixture(scope="module")
def tokenizer(bert: Path):  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(bert)


@pytest.fixture(scope="module")
def long_reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 60 words, of which only one of the last ten decides."""
    generator, lines = random.Random(1), []
    for i in range(240):
        words = generator.choices(OTHERS, k=60)
        words[-generator.randint(1, 10)] = generator.choice(GOOD if i % 2 else BAD)
        lines.append((" ".join(words), "positive" if i % 2 else "negative"))
    return write(tmp_path_factory.mktemp("long") / "long.csv", ("text", "label"), lines)


def test_cut_middle_keeps_the_first_quarter_and_the_end(tokenizer) -> None:  # type: ignore[no-untyped-def]
    words = [OTHERS[i % len(OTHERS)] for i in range(20)]
    texts, cut = cut_middle([" ".join(words), "a good film"], tokenizer, 8)
    assert texts[0].split() == [*words[:2], *words[-6:]]
    assert texts[1] == "a good film"
    assert cut == [True, False]


def test_windows_cover_all_tokens_and_overlap(tokenizer) -> None:  # type: ignore[no-untyped-def]
    words = [OTHERS[i % len(OTHERS)] for i in range(30)]
    encoded = encode_windows(["good film", " ".join(words)], tokenizer, 10)
    special = set(tokenizer.all_special_ids)
    windows = [[i for i in ids if i not in special] for ids in encoded["input_ids"]]
    assert encoded["window_row"][0] == 0
    assert set(encoded["window_row"][1:]) == {1}
    assert encoded["truncated"] == [False] + [True] * (len(windows) - 1)
    size = max(map(len, windows))
    step = size - size // 4
    ids = tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    assert windows[1:] == [ids[start : start + size] for start in range(0, len(ids) - size + step, step)]
    assert max(map(len, encoded["input_ids"])) <= 10


def test_pooling_is_the_mean_of_each_row() -> None:
    assert pool_windows([[1.0], [2.0], [6.0], [7.0]], [0, 1, 1, 1]).tolist() == [[1.0], [5.0]]


@pytest.mark.parametrize(
    ("mode", "learns"),
    [
        pytest.param("truncate", False, marks=pytest.mark.long),
        pytest.param("head-tail", True, marks=pytest.mark.long),
        ("windows", True),
    ],
)
def test_only_truncation_misses_the_end(
    long_reviews: Path, tmp_path: Path, headwise: Headwise, mode: str, learns: bool
) -> None:
    out = tmp_path / "run"
    options: tuple[object, ...] = (
        "--heads",
        2,
        "--head-dim",
        8,
        "--word-dim",
        16,
        "--learning-rate",
        0.02,
        "--epochs",
        8,
    )
    options += ("--max-length", 24, "--long-text", mode, "--model", "none")
    code, stdout, stderr = headwise("train", "--data", long_reviews, "--out", out, *options)
    assert code == 0, stderr
    accuracy = float(stdout.split("test: accuracy ")[1].split()[0])
    assert (accuracy > 0.9) == learns
    note = {
        "truncate": "truncated to 24 tokens (--max-length): 192 of 192 train texts",
        "head-tail": "middle removed, down to 24 tokens (--max-length): 192 of 192 train texts",
        "windows": "windows of up to 24 tokens (--long-text): 192 train texts are 576",
    }[mode]
    assert note in stderr
    if not learns:
        return
    assert "verdict" in (out / "metrics.json").read_text()
    code, stdout, _ = headwise("evaluate", out)
    assert f"accuracy {accuracy:.4f}" in stdout, "evaluation reads texts as training does"
    labelled = tmp_path / "labelled.csv"
    assert headwise("predict", out, long_reviews, "--out", labelled)[0] == 0
    with labelled.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240
    assert sum(row["predicted"] == row["label"] for row in rows) > 200


def test_modes_that_do_not_apply(tmp_path: Path, headwise: Headwise) -> None:
    pairs = [(f"text {i}", f"other {i}", "ab"[i % 2]) for i in range(40)]
    data = write(tmp_path / "pairs.csv", ("first", "second", "label"), pairs)
    options = ("--out", tmp_path / "run", "--text", "first", "--pair", "second", "--long-text", "windows")
    code, _, stderr = headwise("train", "--data", data, *options)
    assert code == 2
    assert "--long-text windows does not apply to text pairs" in stderr
