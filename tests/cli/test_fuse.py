"""`headwise fuse`: which layers it fuses, what it measures, and what it refuses."""

from pathlib import Path

import pytest

from headwise.bench.fusion import PASSES
from headwise.cli import main
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
    assert "batch size 2, float32, cpu; medians of 1 rounds" in captured.out


def test_other_models_are_refused_with_the_known_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    assert main(["fuse", str(tmp_path / "bert")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith(f"headwise: error: {tmp_path / 'bert'}: ")
    assert "T5" in lines[-1]
    assert "DeBERTa" in lines[-1]


def test_invalid_numbers_are_refused_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", "missing", "--bench", "--lengths", "0"]) == 2
    assert capsys.readouterr().err == "headwise: error: --lengths must be at least 1, got 0\n"
