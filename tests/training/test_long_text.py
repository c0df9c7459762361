"""`--long-text`: texts that are longer than the model's input."""

import csv
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import RobertaProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from headwise.training.text.encoding import TextEncoder
from headwise.training.text.long_text import cut_middle, encode_pair_windows, encode_windows, pool_windows
from tests.training.conftest import BAD, GOOD, OTHERS, Headwise, write


@pytest.fixture(scope="module")
def tokenizer(bert: Path) -> Any:
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


def test_cut_middle_keeps_the_first_quarter_and_the_end(tokenizer: Any) -> None:
    words = [OTHERS[i % len(OTHERS)] for i in range(20)]
    texts, cut = cut_middle([" ".join(words), "a good film"], tokenizer, 8)
    assert texts[0].split() == [*words[:2], *words[-6:]]
    assert texts[1] == "a good film"
    assert cut == [True, False]


def test_windows_cover_all_tokens_and_overlap(tokenizer: Any) -> None:
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
    assert count_right_predictions(headwise, out, long_reviews, accuracy) > 200


def count_right_predictions(headwise: Headwise, run: Path, data: Path, accuracy: float) -> int:
    """Check that evaluation reads texts as training does. Return how many rows of the data get their label."""
    assert f"accuracy {accuracy:.4f}" in headwise("evaluate", run)[1]
    labelled = run.parent / "labelled.csv"
    assert headwise("predict", run, data, "--out", labelled)[0] == 0
    with labelled.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 240
    return sum(row["predicted"] == row["label"] for row in rows)


def test_windows_of_pairs_repeat_the_shorter_text(tokenizer: Any) -> None:
    words = [OTHERS[i % len(OTHERS)] for i in range(30)]
    long_text, short_text = " ".join(words), "good film"
    encoded = encode_pair_windows(
        [long_text, short_text, short_text], [short_text, "bad plot", long_text], tokenizer, 15
    )
    assert max(encoded["length"]) <= 15
    ids, short_ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (long_text, short_text))
    room = 15 - tokenizer.num_special_tokens_to_add(pair=True) - len(short_ids)
    step = room - room // 4
    parts = [ids[start : start + room] for start in range(0, len(ids) - room + step, step)]
    rows = [
        split_pair(tokenizer, *window) for window in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    ]
    assert encoded["window_row"] == [0] * len(parts) + [1] + [2] * len(parts)
    assert rows[: len(parts)] == [(part, short_ids) for part in parts], "the first text is the longer one"
    assert rows[len(parts) + 1 :] == [(short_ids, part) for part in parts], "the second text is the longer one"
    assert encoded["truncated"] == [row != 1 for row in encoded["window_row"]]
    together = encode_pair_windows([long_text], [short_text], tokenizer, 15)["input_ids"]
    assert together == encoded["input_ids"][: len(parts)], "windows do not depend on the other rows"


def split_pair(tokenizer: Any, ids: list[int], types: list[int]) -> tuple[list[int], list[int]]:
    """Return the tokens of both texts of a pair, without special tokens."""
    special = set(tokenizer.all_special_ids)
    first, second = (
        [token for token, kind in zip(ids, types, strict=True) if kind == side and token not in special]
        for side in (0, 1)
    )
    return first, second


def test_two_long_texts_share_the_window(tokenizer: Any) -> None:
    text, longer = " ".join(OTHERS * 4), " ".join(OTHERS * 5)
    ids, longer_ids = (tokenizer(x, add_special_tokens=False)["input_ids"] for x in (text, longer))
    room = 23 - tokenizer.num_special_tokens_to_add(pair=True)
    encoded = encode_pair_windows([text], [longer], tokenizer, 23)
    windows = [split_pair(tokenizer, *x) for x in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)]
    assert {tuple(first) for first, _ in windows} == {tuple(ids[: room // 2])}, "the start of the shorter text"
    assert windows[0][1] == longer_ids[: room - room // 2]
    assert windows[-1][1][-1] == longer_ids[-1]


def test_cut_words_may_have_more_tokens() -> None:
    """The tokens of a byte-level BPE depend on the whole word, and characters have several tokens."""
    generator = random.Random(0)
    words = ("film", "naïve", "😀😀", "日本語テキスト", "antidisestablishment", "x" * 40, "\n")
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=ByteLevel.alphabet())
    bpe.train_from_iterator([" ".join(generator.choices(words, k=50)) for _ in range(50)], trainer)
    bpe.post_processor = RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="</s>")
    for max_length in range(6, 60, 2):
        texts, pairs = ([" ".join(generator.choices(words, k=k)) for k in (40, 1, 10)] for _ in range(2))
        encoded = encode_pair_windows(texts, pairs[::-1], tokenizer, max_length)
        assert set(encoded["window_row"]) == {0, 1, 2}
        assert max(map(len, encoded["input_ids"])) <= max_length


def test_windows_of_separately_encoded_pairs(tokenizer: Any) -> None:
    long_text = " ".join(OTHERS * 3)
    encoder = TextEncoder(tokenizer, "classification", "siamese", 10, long_text="windows")
    encoded = encoder.encode({"text": ["good", long_text], "pair": [long_text, "good"], "label": [0, 1]})
    windows, short = (encode_windows([text], tokenizer, 10)["input_ids"] for text in (long_text, "good"))
    count = len(windows)
    assert encoded["window_row"] == encoded["labels"] == [0] * count + [1] * count
    assert encoded["input_ids"] == short * count + windows
    assert encoded["pair_input_ids"] == windows + short * count


@pytest.mark.parametrize(
    ("pairs", "learns"),
    [("joint", True), pytest.param("siamese", False, marks=pytest.mark.long)],  # it does not learn whole texts either
)
def test_windows_of_pairs_are_trained_evaluated_and_predicted(
    long_reviews: Path, tmp_path: Path, headwise: Headwise, pairs: str, learns: bool
) -> None:
    with long_reviews.open() as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    generator, lines = random.Random(2), []
    for text, label in rows:
        texts = ["film plot", text] if generator.random() < 0.5 else [text, "film plot"]
        lines.append((*texts, label))
    data = write(tmp_path / "pairs.csv", ("premise", "hypothesis", "label"), lines)
    out = tmp_path / "run"
    sizes = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--learning-rate", 0.02, "--epochs", 8)
    options = ("--model", "none", "--pairs", pairs, "--max-length", 24, "--long-text", "windows", "--report-to", "none")
    code, stdout, stderr = headwise("train", "--data", data, "--out", out, *sizes, *options)
    assert code == 0, stderr
    assert "windows of up to 24 tokens (--long-text): 192 train pairs are " in stderr
    accuracy = float(stdout.split("test: accuracy ")[1].split()[0])
    assert accuracy > 0.9 or not learns
    assert count_right_predictions(headwise, out, data, accuracy) > 200 or not learns


def test_windows_of_pairs_in_a_hugging_face_model(bert: Path, tmp_path: Path, headwise: Headwise) -> None:
    lines = [(f"good film {i % 3}", " ".join(OTHERS * (1 + i % 4)), "ab"[i % 2]) for i in range(40)]
    data = write(tmp_path / "pairs.csv", ("first", "second", "label"), lines)
    out = tmp_path / "run"
    options = ("--model", bert, "--max-length", 16, "--long-text", "windows", "--epochs", 1, "--report-to", "none")
    code, stdout, stderr = headwise(
        "train", "--data", data, "--text", "first", "--pair", "second", "--out", out, *options
    )
    assert code == 0, stderr
    assert "averages the scores" in (out / "README.md").read_text()
    test = stdout.split("test: ")[1].splitlines()[0].split(" ±")[0]
    assert test in headwise("evaluate", out)[1]


def test_modes_that_do_not_apply(tmp_path: Path, headwise: Headwise) -> None:
    pairs = [(f"text {i}", f"other {i}", "ab"[i % 2]) for i in range(40)]
    data = write(tmp_path / "pairs.csv", ("first", "second", "label"), pairs)
    columns = ("--text", "first", "--pair", "second")
    message = "--long-text head-tail does not apply to text pairs; windows does"
    code, _, stderr = headwise("train", "--data", data, "--out", tmp_path / "run", *columns, "--long-text", "head-tail")
    assert (code, message in stderr) == (2, True)
    methods = ("--methods", "none", "cut=--model none --long-text head-tail")
    code, _, stderr = headwise("compare", "--data", data, "--out", tmp_path / "study", *columns, *methods)
    assert (code, f"--methods cut: {message}" in stderr) == (2, True)
    assert not (tmp_path / "study").exists(), "before the first run"
    over = ("--model", "none", "--over", "long_text", "windows", "head-tail")
    code, _, stderr = headwise("sweep", "--data", data, "--out", tmp_path / "study", *columns, *over)
    assert (code, message in stderr) == (2, True)
    assert not (tmp_path / "study").exists(), "before the first run"
