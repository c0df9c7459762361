"""Evaluation of and translation with finished runs: files and streams in their order, and rejected inputs."""

import csv
import gzip
import io
import json
import os
import re
import threading
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.training import RunResult, evaluate, predict, train
from headwise.training.translation.inference import TranslationModel
from headwise.training.translation.predict import read_stream
from tests.training.conftest import Headwise
from tests.training.test_inspect import page_data
from tests.training.translation.conftest import build_config, sentences, translate_words, write

LINES = ["two three", "", "six", "one two three four", "   ", "five"]


@pytest.fixture
def translations(run: RunResult) -> list[str]:
    """The translation of each line by itself."""
    translator = TranslationModel.load(run.run_dir)
    texts = [translator.translate([line], ["line 1"])[0] for line in LINES]
    assert texts[1] == texts[4] == ""
    assert texts[2] == "sechs"
    assert len(set(texts)) == 5
    return texts


@pytest.mark.parametrize(
    ("name", "out"), [pytest.param("new.en", "new.de", marks=pytest.mark.long), ("new.txt.gz", "out.gz")]
)
def test_translated_lines_keep_their_order(
    name: str, out: str, run: RunResult, translations: list[str], tmp_path: Path
) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert predict(run.run_dir, tmp_path / name, tmp_path / out) == 2
    written = (tmp_path / out).read_bytes()
    assert (gzip.decompress(written) if out.endswith(".gz") else written).decode().split("\n")[:-1] == translations


def test_standard_input_is_translated_to_standard_output(
    run: RunResult, translations: list[str], headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in LINES)))
    code, written, err = headwise("predict", run.run_dir, "-", "--out", "-")
    assert (code, written.split("\n")[:-1]) == (0, translations)
    assert "2 rows have no text" in err


def test_stream_lines_are_yielded_as_they_arrive() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as stream, os.fdopen(write_end, "w") as writer:
        chunks = read_stream(stream)
        writer.write("first\n")
        writer.flush()
        assert next(chunks) == ["first"], "waited for more lines"

        def write_rest() -> None:
            writer.write("second\nthird\n")
            writer.close()

        threading.Timer(0.05, write_rest).start()
        rest = [line for chunk in chunks for line in chunk]
    assert rest == ["second", "third"]


def test_invalid_streams_raise_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_MAX_LINE_BYTES", "10")
    with pytest.raises(UserError, match="standard input, line 2: more than 10 characters"):
        list(read_stream(io.StringIO("short\n" + "long " * 1000)))
    with pytest.raises(UserError, match="standard input, line 1 or later: not utf-8; convert it to UTF-8"):
        list(read_stream(io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")))


def test_table_gets_a_predicted_column(run: RunResult, translations: list[str], tmp_path: Path) -> None:
    rows = [{"id": n, "en": text} for n, text in enumerate(LINES)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(run.run_dir, tmp_path / "new.jsonl", tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [row | {"predicted": text} for row, text in zip(rows, translations, strict=True)]


def test_evaluate_repeats_the_metrics_of_the_run(run: RunResult) -> None:
    evaluation = evaluate(run.run_dir)
    assert evaluation["metrics"] == run.metrics["metrics"]["test"]
    assert evaluation["rows"] == 40
    assert evaluation["baselines"] == run.metrics["baselines"]["test"]
    assert evaluation["signatures"] == run.metrics["signatures"]
    assert "--tune" not in evaluation["verdict"] + run.metrics["verdict"], "translators have no such option"


def test_evaluate_rejects_data_that_changed_since_training(tmp_path: Path) -> None:
    data = tmp_path / "pairs.tsv"
    texts = sentences(60, seed=1)
    data.write_text(
        "".join(f"{en}\t{de}\n" for en, de in [("en", "de"), *zip(texts, map(translate_words, texts), strict=True)])
    )
    run = train(build_config(data, epochs=1, beams=1), tmp_path / "run")
    assert evaluate(run.run_dir)["metrics"] == run.metrics["metrics"]["test"]
    with data.open("a") as file:
        file.write("one two\teins zwei\n")
    with pytest.raises(UserError, match=r"the data has changed since training \(.*pairs\.tsv\).* --data"):
        evaluate(run.run_dir)
    assert evaluate(run.run_dir, data)["rows"] == 61


def test_evaluate_reads_other_pairs(run: RunResult, tmp_path: Path) -> None:
    write(tmp_path, "more", sentences(20, seed=9))
    assert evaluate(run.run_dir, tmp_path / "more.en")["metrics"]["bleu"] > 80


def test_other_languages_are_rejected(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    write(tmp_path, "more", ["one two"])
    code, _, err = headwise("predict", run.run_dir, tmp_path / "more.en", "--target", "fr", "--out", tmp_path / "out")
    assert (code, "translates from en to de, not from en to fr" in err) == (2, True)
    with pytest.raises(UserError, match="not from de to de"):
        evaluate(run.run_dir, source="de")
    with pytest.raises(UserError, match=r"is in de; the run in .* translates from en"):
        predict(run.run_dir, tmp_path / "more.de", tmp_path / "out")
    with pytest.raises(UserError, match=r"expected the extension \.en"):
        evaluate(run.run_dir, tmp_path / "more.de")
    assert not (tmp_path / "out").exists()


def test_too_long_line_is_reported_or_clipped(run: RunResult, tmp_path: Path, headwise: Headwise) -> None:
    (tmp_path / "new.en").write_text("one\n" + " ".join(["two"] * 20) + "\n")
    code, _, err = headwise("predict", run.run_dir, tmp_path / "new.en", "--out", tmp_path / "new.de")
    assert code == 2
    assert re.search(r"new\.en, line 2: \d+ tokens, but at most 16 are allowed", err)
    assert not (tmp_path / "new.de").exists()
    code, *_ = headwise("predict", run.run_dir, tmp_path / "new.en", "--out", tmp_path / "new.de", "--clip")
    assert code == 0
    assert (tmp_path / "new.de").read_text().splitlines()[0] == "eins"


def test_options_of_other_task_types_are_rejected(run: RunResult, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--text does not apply"):
        predict(run.run_dir, tmp_path / "new.en", tmp_path / "out", text="en")
    with pytest.raises(UserError, match="no such file"):
        predict(run.run_dir, tmp_path / "nowhere.en", tmp_path / "out")


def test_attention_of_the_encoder_and_the_decoder_is_inspected(
    run: RunResult, headwise: Headwise, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    code, _, err = headwise("inspect", run.run_dir, "--text", "two three", "six", "--out", page)
    assert (code, err) == (0, "")
    texts = page_data(page)["texts"]
    assert [(text["row"], text["part"]) for text in texts] == [
        (row, part)
        for row in (0, 1)
        for part in ("encoder self-attention", "decoder self-attention", "cross-attention")
    ]
    encoder, decoder, cross = texts[:3]
    assert "".join(encoder["tokens"]).startswith("twothree")
    assert cross["key_tokens"] == encoder["tokens"]
    assert decoder["tokens"][1:] == cross["tokens"][:-1]
    translation = TranslationModel.load(run.run_dir).translate(["two three"], ["line 1"])[0]
    assert cross["models"][0]["prediction"] == {"text": translation, "is_given": False}
    assert "".join(cross["tokens"]).startswith(translation.replace(" ", ""))


def test_a_given_translation_is_aligned(run: RunResult, headwise: Headwise, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source, target = "two three six", "zwei drei sechs"
    code, _, err = headwise("inspect", run.run_dir, "--text", source, "--target", target, "--out", out)
    assert (code, err) == (0, "")
    assert page_data(out / "page.html")["texts"][2]["models"][0]["prediction"] == {"text": target, "is_given": True}
    with (out / "alignments.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["layer"] == "all"]
    assert "".join(row["target_token"] for row in rows).startswith(target.replace(" ", ""))
    assert all(0 < float(row["weight"]) <= 1 for row in rows)
    code, _, err = headwise("inspect", run.run_dir, "--text", source, "--target", target, "x", "--out", tmp_path / "a")
    assert (code, "--target has 2 texts, --text has 1; give as many of each" in err) == (2, True)


def test_statistics_of_a_file_are_those_of_the_encoder(run: RunResult, headwise: Headwise, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\ntwo three\nsix\n")
    page = tmp_path / "page.html"
    code, _, err = headwise("inspect", run.run_dir, "--data", tmp_path / "new.csv", "--out", page)
    assert code == 0, err
    contents = page_data(page)
    assert [text["part"] for text in contents["texts"][:3]][2] == "cross-attention"
    (statistics,) = contents["statistics"]
    layers = len(contents["texts"][0]["models"][0]["cell_max"])
    assert (statistics["texts"], len(statistics["measures"]["entropy"])) == (2, layers)
