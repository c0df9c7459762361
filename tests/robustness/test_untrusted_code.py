"""Python code in model directories is not run, whatever is typed or piped into a prompt."""

import io
import json
import shutil
from pathlib import Path

import pytest

from headwise.training import TextConfig, train
from tests.short_form import keep_short
from tests.training.conftest import Headwise, rows, write

CODE = """
from pathlib import Path
Path(__file__).with_name("CODE_HAS_RUN").touch()
Path({marker!r}).touch()
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast
class OwnConfig(BertConfig):
    model_type = "own-model"
class OwnModel(BertModel):
    config_class = OwnConfig
class OwnClassifier(BertForSequenceClassification):
    config_class = OwnConfig
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that exists once foreign code has run."""
    return tmp_path / "marker"


@pytest.fixture(autouse=True)
def hostile_stdin(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard input that answers every question with yes."""
    answers = io.StringIO("y\nthe film\n" * 20)
    monkeypatch.setattr("sys.stdin", answers)
    return answers


def add_code(directory: Path, marker: Path, *, model: bool, tokenizer: bool) -> None:
    """Make a model's directory one that needs its own Python code."""
    (directory / "own.py").write_text(CODE.format(marker=str(marker)), encoding="utf-8")
    config = json.loads((directory / "config.json").read_text())
    if model:
        config["model_type"] = "own-model"
        config["auto_map"] = {
            "AutoConfig": "own.OwnConfig",
            "AutoModel": "own.OwnModel",
            "AutoModelForSequenceClassification": "own.OwnClassifier",
            "AutoModelForSeq2SeqLM": "own.OwnModel",
        }
    (directory / "config.json").write_text(json.dumps(config))
    if tokenizer:
        path = directory / "tokenizer_config.json"
        options = json.loads(path.read_text()) | {
            "tokenizer_class": "OwnTokenizer",
            "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
        }
        path.write_text(json.dumps(options))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("untrusted")
    data = write(directory / "reviews.csv", ("text", "label"), list(rows(60)))
    config = TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=1, batch_size=16)
    return train(config, directory / "run").run_dir


COMMANDS = ("train", "compare", "sweep", "inspect", "evaluate", "predict")  # sweep trains runs as compare does
PARTS = [{"model": True, "tokenizer": False}, {"model": False, "tokenizer": True}, {"model": True, "tokenizer": True}]


@pytest.mark.short_form("values")
@pytest.mark.parametrize("parts", PARTS, ids=["model", "tokenizer", "both"])
@pytest.mark.parametrize("command", keep_short(COMMANDS, "train", "compare", "inspect", "evaluate", "predict"))
def test_code_of_a_directory_is_refused(
    command: str,
    parts: dict[str, bool],
    bert: Path,
    finished_run: Path,
    reviews: Path,
    marker: Path,
    tmp_path: Path,
    headwise: Headwise,
) -> None:
    directory = tmp_path / "foreign"
    shutil.copytree(finished_run if command in ("evaluate", "predict") else bert, directory)
    add_code(directory, marker, **parts)
    args: dict[str, tuple[object, ...]] = {
        "train": ("--data", reviews, "--model", directory, "--epochs", 1, "--out", tmp_path / "out"),
        "compare": ("--data", reviews, "--methods", directory, "--seeds", 1, "--epochs", 1, "--out", tmp_path / "out"),
        "sweep": ("--data", reviews, "--model", directory, "--guides", "mdg", "--epochs", 1, "--out", tmp_path / "out"),
        "inspect": (directory, "--text", "a good film", "--out", tmp_path / "page.html"),
        "evaluate": (directory, "--data", reviews),
        "predict": (directory, reviews, "--out", tmp_path / "labelled.csv"),
    }
    code, out, err = headwise(command, *args[command])
    assert not marker.exists()
    assert not (directory / "CODE_HAS_RUN").exists()
    assert "y/N" not in out + err
    if code == 0:  # transformers has a tokenizer of its own for this type of model, and uses that one
        assert parts == {"model": False, "tokenizer": True}
        return
    assert not (tmp_path / "page.html").exists()
    assert not (tmp_path / "labelled.csv").exists()
    if command not in ("compare", "sweep"):  # whose runs report it in their logs
        assert "--trust-remote-code" in err
        assert "Traceback" not in err


def test_code_runs_when_it_is_trusted(
    bert: Path, reviews: Path, marker: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    directory = tmp_path / "foreign"
    shutil.copytree(bert, directory)
    add_code(directory, marker, model=True, tokenizer=False)
    headwise("inspect", directory, "--text", "a good film", "--trust-remote-code", "--out", tmp_path / "page.html")
    assert marker.exists()


def test_run_yaml_cannot_grant_trust(finished_run: Path, tmp_path: Path, headwise: Headwise) -> None:
    directory = tmp_path / "foreign"
    shutil.copytree(finished_run, directory)
    with (directory / "run.yaml").open("a", encoding="utf-8") as file:
        file.write("trust_remote_code: true\n")
    code, _, err = headwise("train", "--config", directory / "run.yaml", "--out", tmp_path / "out")
    assert code == 2
    assert "trust_remote_code" in err
