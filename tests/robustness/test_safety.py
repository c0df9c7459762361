"""The source calls nothing that runs untrusted input, and outputs contain nothing of the machine."""

import ast
import getpass
import json
import os
import pickle
import re
import shutil
import socket
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import headwise as package
from headwise.errors import UserError
from headwise.studies.study import Study
from headwise.studies.worker import train_run
from headwise.training import TextConfig, TextModel, train
from headwise.training.core.run_dir import last_checkpoint
from headwise.training.registry import load_config
from tests.short_form import choose_size
from tests.studies.fakes import work
from tests.training.conftest import Headwise

ROOT = Path(package.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

#: Modules that execute what they read, or write to paths from an archive.
FORBIDDEN_MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "tarfile", "zipimport"}
#: Calls that do so, by the last part of their names.
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "unpack_archive", "extractall", "extract", "unsafe_load", "full_load"}


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    return [(path, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@cache
def calls() -> list[tuple[Path, ast.Call, str]]:
    return [(path, node, ast.unparse(node.func)) for path, node in nodes() if isinstance(node, ast.Call)]


def keyword(call: ast.Call, name: str) -> str | None:
    """Return the source of a keyword argument."""
    return next((ast.unparse(option.value) for option in call.keywords if option.arg == name), None)


def test_nothing_that_is_read_is_run() -> None:
    for path, node in nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and [alias.name for alias in node.names] != ["UnpicklingError"]:
            names.append(node.module or "")
        assert not {name.split(".")[0] for name in names} & FORBIDDEN_MODULES, path
    for path, call, name in calls():
        last = name.split(".")[-1]
        assert last not in FORBIDDEN_CALLS or name.startswith(("model.", "re.", "self.model.")), f"{path}: {name}"
        assert not name.endswith("yaml.load"), path
        if name.endswith(("torch.load", "np.load", "numpy.load")):
            safe = keyword(call, "weights_only") == "True" or keyword(call, "allow_pickle") == "False"
            assert safe, f"{path}: {ast.unparse(call)}"


def test_from_pretrained_is_called_in_one_place() -> None:
    """`load_pretrained` refuses foreign code; `FirstToken` and `from_pretrained` pass its options on."""
    places = {
        path.relative_to(ROOT).as_posix()
        for path, call, name in calls()
        if name.endswith(".from_pretrained") or (name == "load" and "trust_remote_code" in ast.unparse(call))
    }
    assert places == {"training/core/pretrained.py", "models/first_token.py", "integrations/saving.py"}


def test_models_are_loaded_from_safetensors_or_as_weights_only() -> None:
    loads = 0
    for path, call, name in calls():
        if name == "load_pretrained" and re.search(
            "Model|from_pretrained|Headwise|model_class|loader", ast.unparse(call.args[0])
        ):
            loads += 1
            is_safe = "True" in (keyword(call, "use_safetensors"), keyword(call, "weights_only"))
            assert is_safe, f"{path}: {ast.unparse(call)}"
    assert loads >= 5


class Trap:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.training.conftest import rows, write

    folder = tmp_path_factory.mktemp("secret-place")
    data = write(folder / "reviews.csv", ("text", "label"), list(rows(100)))
    settings = TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, epochs=2, batch_size=16)
    return train(settings, folder / "run").run_dir


def test_no_pickle_of_a_run_is_obeyed(run: Path, tmp_path: Path) -> None:
    """A folder from elsewhere: its model is no safetensors file, its checkpoint is a trap."""
    sprung = tmp_path / "sprung"
    kept = (run / "model.safetensors").read_bytes()
    try:
        (run / "model.safetensors").unlink()
        (run / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(sprung)))
        with pytest.raises(UserError, match="the model cannot be loaded"):
            TextModel.load(run)
    finally:
        (run / "pytorch_model.bin").unlink()
        (run / "model.safetensors").write_bytes(kept)
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    shutil.rmtree(checkpoint)  # of the one before, all is read: there is an epoch to come
    checkpoint = last_checkpoint(run)
    assert checkpoint is not None
    figures = (run / "metrics.json").read_bytes()
    (run / "metrics.json").unlink()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        path = Path(checkpoint, name)
        sound = path.read_bytes()
        torch.save(Trap(sprung), path)
        sizes = json.loads(Path(checkpoint, "manifest.json").read_text())
        Path(checkpoint, "manifest.json").write_text(json.dumps(sizes | {name: path.stat().st_size}))
        with pytest.raises(UserError, match=r"cannot be resumed .*Weights only load failed"):
            train(load_config(run / "run.yaml"), run, resume=True)
        path.write_bytes(sound)
        Path(checkpoint, "manifest.json").write_text(json.dumps(sizes))
    (run / "metrics.json").write_bytes(figures)
    assert not sprung.exists()


def names_of_the_machine(*places: Path) -> set[str]:
    names = {*map(str, places), str(Path.home()), socket.gethostname(), os.uname().nodename, getpass.getuser()}
    return names - {"", "/", "root", "/root", "localhost"}


def test_what_may_be_shared_tells_nothing_of_the_machine(run: Path) -> None:
    """`run.yaml` holds where the data is, by design: it does the run again. All else may be given away."""
    names = names_of_the_machine(run, run.parent) | {"secret-place"}
    shared = [path for path in run.iterdir() if path.suffix in (".md", ".json") or path.name == "run.yaml"]
    assert {"README.md", "config.json", "metrics.json", "run.yaml"} <= {path.name for path in shared}
    for path in shared:
        text = path.read_text(encoding="utf-8")
        if path.name == "run.yaml":
            text = "\n".join(line for line in text.splitlines() if line.startswith("#"))
        assert not [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)], path
    assert load_file(run / "model.safetensors")


def test_a_model_from_a_folder_and_pages_about_it(
    bert: Path, reviews: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    if choose_size(short=True, long=False):  # workers would import torch
        monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train_run, add_runs))
    out, page = tmp_path / "run", tmp_path / "page.html"
    options = ("--data", reviews, "--model", bert, "--epochs", 1, "--batch-size", 16)
    assert headwise("train", *options, "--out", out)[0] == 0
    assert headwise("inspect", out, bert, "--text", "a good film", "--out", page)[0] == 0
    study = ("compare", *options[:2], "--methods", bert, f"{bert}+mdg", "--seeds", 1, "--epochs", 1, "--batch-size", 16)
    assert headwise(*study, "--out", tmp_path / "study")[0] == 0
    names = names_of_the_machine(bert.parent, reviews.parent, tmp_path)
    shared = [out / "README.md", out / "config.json", page, *(tmp_path / "study").glob("*.html")]
    shared += (tmp_path / "study").glob("*.md")
    assert len(shared) >= 4
    for path in shared:
        text = path.read_text(encoding="utf-8")
        assert not [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)], path
