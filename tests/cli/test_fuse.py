"""`headwise fuse`: which layers it fuses, what it measures, and what it refuses."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from headwise.bench.fusion import PASSES
from headwise.cli import main
from headwise.cli.fuse import choose_lengths
from tests.bench.conftest import cheap_measurements
from tests.integrations.fusion.cases import CASES, build_model

__all__ = ["cheap_measurements"]


@pytest.fixture(scope="module")
def deberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "deberta"
    build_model(CASES["deberta-v3"]).float().save_pretrained(directory)
    return directory


@pytest.mark.usefixtures("cheap_measurements")
def test_table_of_a_model(deberta: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--lengths", "8", "--batch-size", "2", "--repeats", "1", "--no-compile", "--device", "cpu"]
    assert main(["fuse", str(deberta), "--bench", *options]) == 0
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "DeBERTa" in text, "the report names the family"
    for direction in PASSES:
        assert direction in captured.out
    assert "batch size 2, float32, cpu; medians of 1 round," in captured.out


def save_model(name: str, directory: Path) -> str:
    """Save a tiny model of a family and return its path."""
    build_model(CASES[name]).float().save_pretrained(directory / name)
    return str(directory / name)


@pytest.mark.usefixtures("cheap_measurements")
@pytest.mark.parametrize("name", ["wav2vec2-bert", "parakeet", "nemotron-asr-streaming"])
def test_speech_models_are_measured_by_seconds(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(name, tmp_path)
    options = ["--repeats", "1", "--no-compile", "--device", "cpu"]
    assert main(["fuse", model, "--bench", "--seconds", "1", *options]) == 0
    out = capsys.readouterr().out
    assert "seconds" in out
    assert "Error" not in out
    assert out.count("1×") >= len(PASSES), "the original is the baseline of each pass"
    assert main(["fuse", model, "--bench", "--lengths", "64"]) == 2
    assert capsys.readouterr().err.endswith("reads audio; give its length by --seconds\n")


@pytest.mark.usefixtures("cheap_measurements")
def test_lengths_beyond_the_table_of_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model("mpnet", tmp_path)
    assert main(["fuse", model, "--bench", "--lengths", "8", "100000"]) == 2
    error = capsys.readouterr().err
    assert "--lengths 100000: " in error
    limit = int(error.split()[-2])
    assert main(["fuse", model, "--bench", "--seconds", "8"]) == 2
    assert capsys.readouterr().err.endswith("reads texts; give their length by --lengths\n")
    options = ["--repeats", "1", "--no-compile", "--forward-only", "--device", "cpu"]
    assert main(["fuse", model, "--bench", *options]) == 0
    out = capsys.readouterr().out
    assert f" {limit} " in out, "by default, the longest input that the model reads"
    assert "Error" not in out


@pytest.mark.usefixtures("cheap_measurements")
@pytest.mark.parametrize("name", ["t5-encoder", "fastspeech2-conformer"])
def test_encoders_of_t5_and_text_to_speech_models(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(name, tmp_path)
    options = ["--lengths", "8", "--repeats", "1", "--no-compile", "--device", "cpu"]
    assert main(["fuse", model, "--bench", *options]) == 0
    out = capsys.readouterr().out
    assert "Error" not in out
    assert out.count("1×") >= len(PASSES), "the original is the baseline of each pass"
    assert "decoder.block" not in out


@pytest.mark.usefixtures("cheap_measurements")
def test_transducers_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "tdt")
    config = {"vocab_size": 20, "blank_token_id": 19, "decoder_hidden_size": 8, "num_decoder_layers": 1}
    case = CASES["parakeet"]
    case = replace(case, model="ParakeetForTDT", config=config | {"encoder_config": case.config})
    build_model(case).float().save_pretrained(model)
    options = ["--seconds", "1", "--repeats", "1", "--no-compile", "--device", "cpu"]
    assert main(["fuse", model, "--bench", *options]) == 0
    out = capsys.readouterr().out
    assert "Error" not in out
    assert out.count("1×") >= len(PASSES), "the original is the baseline of each pass"


@pytest.mark.parametrize(("limit", "lengths"), [(64, [64]), (512, [512]), (1024, [512, 1024]), (4096, [512, 2048])])
def test_default_lengths_are_measured_once(limit: int, lengths: list[int]) -> None:
    case = CASES["mpnet"]
    model = build_model(replace(case, config={**case.config, "max_position_embeddings": limit + 2}))
    arguments = Namespace(model="mpnet", lengths=None, seconds=None)
    assert choose_lengths(arguments, model, is_audio=False) == lengths


def test_other_models_are_refused_with_the_known_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    assert main(["fuse", str(tmp_path / "bert")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith(f"headwise: error: {tmp_path / 'bert'}: ")
    assert "T5" in lines[-1]
    assert "DeBERTa" in lines[-1]


def test_error_without_a_message(
    deberta: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object, *, always: bool) -> None:
        raise RuntimeError

    monkeypatch.setattr("headwise.integrations.fusion.fuse_attention", fail)
    assert main(["fuse", str(deberta)]) == 2
    assert f"{deberta}: RuntimeError" in capsys.readouterr().err


def test_invalid_numbers_are_refused_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "missing", "--bench", "--lengths", "0"]) == 2
    assert capsys.readouterr().err == "headwise: error: --lengths must be at least 1, got 0\n"
