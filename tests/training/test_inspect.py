"""`headwise inspect`: pages, figures and tables of runs and Hugging Face models, and its error messages."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
    RemBertConfig,
    RemBertModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)

from headwise.inspection import draw_sorted
from headwise.models import build_tokenizer
from tests.integrations.fusion.cases import CASES, build_model
from tests.training.conftest import Headwise, write

TEXT = "a good film with a dull plot"


@pytest.fixture(scope="module")
def run(bert: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of BERT, retrofitted with distance-aware attention."""
    from headwise.training import TextConfig, train

    run_dir = tmp_path_factory.mktemp("runs") / "distance"
    train(
        TextConfig(data=(str(reviews),), model=str(bert), retrofit="distance-aware", epochs=1, max_length=12, seed=1),
        run_dir,
    )
    return run_dir


@pytest.fixture(scope="module")
def plain(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same BERT with a classifier, saved by transformers."""
    model_dir = tmp_path_factory.mktemp("models") / "plain"
    config = BertConfig.from_pretrained(bert, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0})
    BertForSequenceClassification(config).save_pretrained(model_dir)
    AutoTokenizer.from_pretrained(bert).save_pretrained(model_dir)
    return model_dir


def page_data(page: Path) -> Any:
    """Return the data in a page."""
    html = page.read_text(encoding="utf-8")
    (data,) = re.findall(r'id="metadata">(.*?)</script>', html, re.DOTALL)
    return json.loads(data)


def test_page_of_a_run_and_a_hugging_face_model(run: Path, plain: Path, headwise: Headwise, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    short = "good film"
    code, out, err = headwise("inspect", run, plain, "--text", short, "bad plot", "--out", page)
    assert (code, err) == (0, "")
    assert str(page) in out
    contents = page_data(page)
    assert [model["name"] for model in contents["models"]] == ["distance", "plain"]
    assert [text["tokens"] for text in contents["texts"]] == [
        ["[CLS]", "good", "film", "[SEP]"],
        ["[CLS]", "bad", "plot", "[SEP]"],
    ]
    first, second = contents["texts"][0]["models"]
    assert first["w"] is not None
    assert second["w"] is None
    for model in (first, second):
        assert {label for label, _ in model["prediction"]["labels"]} == {"negative", "positive"}
    assert list(tmp_path.iterdir()) == [page]


def test_statistics_of_a_file_and_chosen_rows(run: Path, reviews: Path, headwise: Headwise, tmp_path: Path) -> None:
    out = tmp_path / "inspected"
    code, _, err = headwise("inspect", run, "--data", reviews, "--rows", "7-7", "--out", out)
    assert code == 0, err
    assert {"sigmoids.svg", "sorted.png", "maps.png", "measures.svg"} <= {x.name for x in (out / "figures").iterdir()}
    with (out / "heads.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 8
    assert headwise("inspect", run, "--data", reviews, "--rows", "3", "7-8", "--out", tmp_path / "page.html")[0] == 0
    contents = page_data(tmp_path / "page.html")
    assert [text["title"].split(":")[0] for text in contents["texts"]] == ["row 3", "row 7", "row 8"]
    assert [text["label"] for text in contents["texts"]] == ["negative", "negative", "positive"]
    assert contents["statistics"][0]["texts"] == 160


def test_statistics_do_not_depend_on_parts(run: Path, reviews: Path, headwise: Headwise, tmp_path: Path) -> None:
    pages = [tmp_path / "whole.html", tmp_path / "parts.html"]
    for page, options in zip(pages, ((), ("--part-rows", 50)), strict=True):
        assert headwise("inspect", run, "--data", reviews, "--rows", "3", "--out", page, *options)[0] == 0
    whole, parts = (page_data(page)["statistics"][0] for page in pages)
    assert whole["texts"] == parts["texts"] == 160
    np.testing.assert_allclose(parts["measures"]["entropy"], whole["measures"]["entropy"], rtol=1e-3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts.html", "whole.html"]


def test_default_rows_and_the_count_of_empty_rows(run: Path, headwise: Headwise, tmp_path: Path) -> None:
    data = write(tmp_path / "few.csv", ("body", "n"), [("good film", "1"), ("", "2"), ("dull plot", "3")])
    code, _, err = headwise("inspect", run, "--data", data, "--columns", "body", "--out", tmp_path / "page.html")
    assert code == 0, err
    contents = page_data(tmp_path / "page.html")
    assert [text["title"] for text in contents["texts"]] == ["row 1: good film", "row 3: dull plot"]
    assert (contents["statistics"][0]["texts"], contents["statistics"][0]["empty"]) == (2, 1)


def test_texts_are_truncated_to_the_max_length_of_the_run(run: Path, headwise: Headwise, tmp_path: Path) -> None:
    assert headwise("inspect", run, "--text", "good film " * 20, "--out", tmp_path / "page.html")[0] == 0
    (text,) = page_data(tmp_path / "page.html")["texts"]
    assert (len(text["tokens"]), text["truncated"]) == (12, True)


def test_force_replaces_output(plain: Path, headwise: Headwise, tmp_path: Path) -> None:
    for out in (tmp_path / "page.html", tmp_path / "folder"):
        arguments = ["inspect", plain, "--text", "good film", "--out", out]
        assert headwise(*arguments)[0] == 0
        code, _, err = headwise(*arguments)
        assert code == 2
        assert "--force replaces it" in err
        assert headwise(*arguments, "--force")[0] == 0


@pytest.mark.parametrize(("name", "family"), [("deberta-v3", "DeBERTa-v2"), ("xlnet", "XLNet")])
def test_models_outside_the_attention_interface_are_fused(
    name: str, family: str, headwise: Headwise, tmp_path: Path
) -> None:
    build_model(CASES[name]).float().save_pretrained(tmp_path / "model")
    build_tokenizer(["a good film"], framed=True, max_tokens=60).save_pretrained(tmp_path / "model")
    page = tmp_path / "page.html"
    code, _, err = headwise("inspect", tmp_path / "model", "--text", "a good film", "film", "--out", page)
    assert (code, err.strip()) == (0, f"model: attention layers fused for inspection: {family}")
    assert page_data(page)["texts"][0]["tokens"] == ["[CLS]", "a", "good", "film", "[SEP]"]


@pytest.mark.parametrize("name", ["T5", "Marian"])
def test_hugging_face_encoder_decoder_models(name: str, headwise: Headwise, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["a good film with a dull plot"], framed=True, max_tokens=30)
    sizes: dict[str, Any]
    ids: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "decoder_start_token_id": 0,
    }
    if name == "T5":
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}
        model: Any = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes, **ids))
    else:
        sizes = {"d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
        sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
        config = MarianConfig(vocab_size=len(tokenizer), max_position_embeddings=30, **sizes, **ids)
        model = MarianMTModel(config)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for target in ((), ("--target", "dull plot")):
        page = tmp_path / f"page{len(target)}.html"
        code, _, err = headwise("inspect", tmp_path / "model", "--text", "a good film", *target, "--out", page)
        assert (code, err) == (0, "")
        encoder, _, cross = page_data(page)["texts"]
        assert encoder["tokens"] == cross["key_tokens"] == ["[CLS]", "a", "good", "film", "[SEP]"]
        if target:
            assert cross["tokens"] == ["[CLS]", "dull", "plot", "[SEP]"]
        prediction = cross["models"][0]["prediction"]
        assert prediction["is_given"] == bool(target)
        assert len(cross["models"][0]["cell_max"]) == 2


def test_encoder_that_was_saved_without_its_decoder(headwise: Headwise, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(["a good film"], framed=True, max_tokens=30)
    config = T5Config(vocab_size=len(tokenizer), d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    page = tmp_path / "page.html"
    code, _, err = headwise("inspect", tmp_path / "model", "--text", "a good film", "--out", page)
    assert (code, err) == (0, "")
    (text,) = page_data(page)["texts"]
    assert text["tokens"] == ["[CLS]", "a", "good", "film", "[SEP]"]


def test_user_errors_are_one_line(plain: Path, run: Path, headwise: Headwise, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tokenizer = build_tokenizer(["a good film"])
    config: dict[str, Any] = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 8,
    }
    BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **config)).save_pretrained(other)
    tokenizer.save_pretrained(other)
    rembert = tmp_path / "rembert"
    long = RemBertConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **config)
    RemBertModel(long).save_pretrained(rembert)
    build_tokenizer(["a good film"], max_tokens=5000).save_pretrained(rembert)
    broken = tmp_path / "broken"
    shutil.copytree(other, broken)
    config_path = broken / "config.json"
    config_path.write_text(config_path.read_text().replace('"intermediate_size": 8', '"intermediate_size": 9'))
    data = write(tmp_path / "data.csv", ("one", "two"), [("good film", "dull plot")])
    empty = write(tmp_path / "empty.csv", ("text", "n"), [("", "1")])
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    page = ["--out", tmp_path / "page.html"]
    text = ["--text", "good film"]
    for arguments, message in (
        ([plain, *page], "a page requires texts: add --text TEXT or --data FILE"),
        ([plain, "--out", tmp_path / "learned"], "no head of plain has learned distances"),
        ([plain, *text, "--data", data, *page], "--text and --data cannot be combined"),
        ([plain, "--text", " ", *page], "empty"),
        ([plain, plain, *text, *page], "a model is named twice"),
        ([*(f"m{number}" for number in range(5)), *text, *page], "got 5"),
        ([plain, other, *text, *page], "(4 and 2)"),
        ([rembert, "--text", "film " * 1100, *page], "1024 tokens"),
        ([broken, *text, *page], "broken: neither a headwise run nor a Hugging Face model that can be loaded"),
        ([tmp_path / "nowhere", *text, *page], "nowhere: no such directory; expected a headwise run or a Hugging"),
        ([run, *text, "--pair", "dull plot", *page], "distance"),
        ([plain, *text, "--pair", "a", "b", *page], "--pair"),
        ([plain, *text, "--target", "dull plot", *page], "plain has no decoder; --target is for translators"),
        ([plain, "--data", data, "--target", "dull plot", *page], "--target has 1 texts, --text has 0"),
        ([plain, *text, "--rows", "3", *page], "--rows and --columns require --data"),
        ([plain, "--data", data, *page], "--columns"),
        ([plain, "--data", data, "--columns", "three", *page], "no column 'three'"),
        ([plain, "--data", data, "--columns", "one", "--rows", "0", *page], "--rows takes numbers from 1"),
        ([plain, "--data", data, "--columns", "one", "--rows", "2", *page], "--rows 2: "),
        ([plain, "--data", data, "--rows", "1-99999999999", *page], "100 rows can be shown, got 99,999,999,999"),
        ([plain, "--data", empty, *page], "no row has a text"),
        ([plain, "--data", empty, "--rows", "1", *page], "has no text"),
        ([plain, "--data", tmp_path / "none.csv", *page], "no such file"),
        ([plain, *text, "--out", full], "contains files not written by headwise inspect"),
        ([plain, *text, "--out", data], "the name of a page ends with .html"),
    ):
        code, out, err = headwise("inspect", *arguments)
        assert code == 2, (arguments, err)
        assert message in err, arguments
        assert err.count("\n") == 1, err
        assert out == ""
    assert not (tmp_path / "page.html").exists()
    assert (full / "mine.txt").read_text() == "mine"


def test_without_texts_learned_distances_are_plotted(run: Path, headwise: Headwise, tmp_path: Path) -> None:
    code, stdout, _ = headwise("inspect", run, "--out", tmp_path / "learned")
    assert code == 0
    assert str(tmp_path / "learned" / "figures") in stdout
    names = {"sigmoids", "coefficients", "sorted"}
    files = {path.name for path in (tmp_path / "learned" / "figures").iterdir()}
    assert files == {f"{name}.{ending}" for name in names for ending in ("png", "svg")}


def test_runs_that_differ_only_in_their_seed_are_combined(
    run: Path, headwise: Headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plotted: dict[str, Any] = {}
    monkeypatch.setattr(
        "headwise.inspection.output_dir.draw_sorted", lambda models: plotted.update(models) or draw_sorted(models)
    )
    for name, old, new in (("other-seed", "seed: 1", "seed: 2"), ("shorter", "max_length: 12", "max_length: 11")):
        shutil.copytree(run, tmp_path / name)
        config_path = tmp_path / name / "run.yaml"
        assert old in config_path.read_text()
        config_path.write_text(config_path.read_text().replace(old, new))
    code, _, err = headwise(
        "inspect", run, tmp_path / "other-seed", tmp_path / "shorter", "--out", tmp_path / "learned"
    )
    assert (code, err) == (0, "")
    assert {name: len(runs) for name, runs in plotted.items()} == {"distance (2 seeds)": 2, "shorter": 1}


@pytest.mark.parametrize("name", ["./nowhere", "runs/nowhere", "a/b/nowhere", "/nowhere"])
def test_missing_directory_is_reported_without_a_network(
    name: str, headwise: Headwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", fail)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    code, _, err = headwise("inspect", name, "--text", TEXT, "--out", tmp_path / "page.html")
    assert (code, err) == (
        2,
        f"headwise: error: {name}: no such directory; expected a headwise run or a Hugging Face model\n",
    )
