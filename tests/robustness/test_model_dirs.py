"""Model and run directories from elsewhere: what their files describe is refused before it is built."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.cli import main
from headwise.errors import UserError
from headwise.native_errors import native_errors, tokenizer_errors
from headwise.training import TextConfig, train
from headwise.training.core.model_dir import has_nested_repeat
from tests.training.conftest import rows, write

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model-dirs")
    data = write(directory / "reviews.csv", ("text", "label"), list(rows(60)))
    config = TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=1, batch_size=16)
    return train(config, directory / "run").run_dir


def set_options(name: str, **options: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | options))

    return change


def replace(name: str, text: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / name).write_text(text)

    return change


def add_pattern(pattern: str) -> Callable[[Path], None]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return set_options("tokenizer.json", pre_tokenizer=split)


def set_token_id(number: int) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary[max(vocabulary, key=vocabulary.__getitem__)] = number
        path.write_text(json.dumps(tokenizer))

    return change


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}

#: Changes of a BERT's directory, and the error.
OF_BERT = {
    "a million layers": (set_options("config.json", num_hidden_layers=10**6), "num_hidden_layers is 1,000,000, but "),
    "negative heads": (set_options("config.json", num_attention_heads=-2), "num_attention_heads is -2; expected 0"),
    "chunks": (set_options("config.json", chunk_size_feed_forward=0.1), "chunk_size_feed_forward is 0.1; expected 0: "),
    "words": (set_options("config.json", vocab_size=10**8), r"describes a model of [\d,]+ parameters, but its weights"),
    "positions": (set_options("config.json", max_position_embeddings=10**12), "describes a model of"),
    "width": (set_options("config.json", hidden_size=10**6), "describes a model of"),
    "a long scheme": (
        set_options("config.json", headwise={"scheme": "rpr", "layers": [0], "options": {"k": 10**9}}),
        "an option of the scheme is 1,000,000,000, above 1,024",
    ),
    "experts": (set_options("config.json", num_experts=10**6), "num_experts is 1,000,000"),
    "classes": (set_options("config.json", num_labels=10**9), "num_labels is 1,000,000,000"),
    "a long integer": (set_options("config.json", hidden_size=int("9" * 4000)), "an integer of 4,000 digits"),
    "deep config.json": (replace("config.json", DEEP), "config.json: nested more than 100 levels"),
    "deep tokenizer_config.json": (replace("tokenizer_config.json", DEEP), "tokenizer_config.json: nested more than"),
    "deep tokenizer.json": (replace("tokenizer.json", DEEP), "tokenizer.json: nested more than 100 levels"),
    "nested repetition": (add_pattern("(a+)+$"), r"the regular expression '\(a\+\)\+\$' repeats a repetition"),
    "exploding alternatives": (add_pattern("(a|a)*$"), "a text cannot be tokenized .*retry-limit"),
    "a large id": (set_token_id(2**31), r"the token '[^']+' has the id 2,147,483,648, above 16,777,216"),
    "an id twice": (set_token_id(3), r"the tokens '[^']+' and '[^']+' have the same id 3: the file is damaged"),
    "special tokens": (
        set_options("tokenizer.json", post_processor=TEMPLATE),
        r"tokenizer.json: a template has the special token '<s>', which is not defined",
    ),
    "input names": (  # transformers 5.23 refuses them itself
        set_options("tokenizer_config.json", model_input_names=8),
        "(a text cannot be tokenized|the tokenizer cannot be loaded) .TypeError",
    ),
    "cut weights": (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 100), "cannot be|can be loaded"),
}
#: Changes of a run's directory.
OF_RUN = {
    "a million layers": (set_options("config.json", layers=10**6), "layers is 1,000,000, but its weights have"),
    "one more layer": (set_options("config.json", layers=2), r"\d+ weights of the model are missing, such as"),
    "words": (set_options("config.json", vocab_size=10**9), "describes a model of"),
    "exploding alternatives": (add_pattern("(a|a)*$"), "a text cannot be tokenized"),
    "no temperature": (
        set_options("metrics.json", decision={"temperature": 0, "thresholds": {}, "confidence_quantiles": []}),
        "metrics.json: .*the temperature is 0, expected a positive number",
    ),
    "deep metrics.json": (replace("metrics.json", DEEP), "metrics.json: nested more than 100 levels"),
    "deep run.yaml": (replace("run.yaml", DEEP), "run.yaml: nested more than 100 levels"),
    "a long integer": (replace("run.yaml", "seed: " + "9" * 5000), "run.yaml: not valid YAML"),
}
TEXT = "a" * 40 + " b"


def refuse(capfd: pytest.CaptureFixture[str], message: str, *args: object) -> None:
    """Check that a command ends with one line, and that compiled libraries print nothing either."""
    capfd.readouterr()
    code = main([str(arg) for arg in args])
    stderr = capfd.readouterr().err
    assert code == 2, stderr
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert lines[-1].startswith("headwise: error: ")
    assert len(lines) == 1, stderr
    with pytest.raises(UserError, match=message):
        raise UserError(lines[-1])


@pytest.mark.parametrize("name", OF_BERT)
def test_models(name: str, bert: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, message = OF_BERT[name]
    directory = tmp_path / "foreign"
    shutil.copytree(bert, directory)
    change(directory)
    refuse(capfd, message, "inspect", directory, "--text", TEXT, "--quiet", "--out", tmp_path / "page.html")
    data = write(tmp_path / "reviews.csv", ("text", "label"), [(TEXT, "x"), *rows(60)])
    if name != "classes":  # the number of classes is that of the data
        command = ("train", "--data", data, "--model", directory, "--epochs", 1, "--quiet", "--out", tmp_path / "out")
        refuse(capfd, message.replace("can be loaded", "the weights"), *command)
        assert not (tmp_path / "out" / "metrics.json").exists()


@pytest.mark.parametrize("name", OF_RUN)
def test_runs(name: str, finished_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, message = OF_RUN[name]
    directory = tmp_path / "foreign"
    shutil.copytree(finished_run, directory)
    change(directory)
    data = write(tmp_path / "new.csv", ("text",), [(TEXT,)])
    refuse(capfd, message, "predict", directory, data, "--quiet", "--out", tmp_path / "labelled.csv")
    assert not (tmp_path / "labelled.csv").exists()


def test_known_patterns_are_accepted() -> None:
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    gpt4 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    punctuation = r"[!-/:-~]+(?:[a-z]|[)\]])?(?:\(x\))*"
    possessive = r"(?:a++|b*+|c?+)+ (?>x+)* [*+]+"
    assert not any(map(has_nested_repeat, (gpt2, gpt4, punctuation, possessive)))
    exploding = (r"(a+)+", r"(a*){2,}", r"(?:x[+*]y|\s*)*", r"((ab)+c)*", r"(?:(a{3,}))+", r"(a+?)+")
    assert all(map(has_nested_repeat, exploding))


def test_panics_and_exhausted_memory_are_errors() -> None:
    panic = type("PanicException", (BaseException,), {})
    errors = [panic("index out of bounds"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
    for error in errors:
        for context in (native_errors("models/foreign", "cannot be loaded"), tokenizer_errors(object())):
            with pytest.raises(UserError, match=r"^(models/foreign: cannot be|the tokenizer: a text cannot)"), context:
                raise error
    with pytest.raises(KeyboardInterrupt), native_errors("models/foreign", "cannot be loaded"):
        raise KeyboardInterrupt
