"""Imports: which packages a command or a name imports, and what is printed if one is missing."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from headwise._extras import EXTRAS
from headwise.cli import COMMANDS
from tests.fresh_python import run_fresh_python

ROOT = Path(__file__).parents[1]

#: Distributions whose modules have another name.
MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}

#: Packages that take long to import.
SLOW = {"datasets", "matplotlib", "optuna", "pandas", "pyarrow", "scipy", "sklearn", "torch", "transformers"}

#: Code that hides packages: importing them fails as if they were not installed.
HIDE = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
real_find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name in {names!r} else real_find_spec(name, *args)
"""


def run_python(code: str, hidden: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run code in a new process in which some packages are not installed."""
    code = "import importlib.util\n" + HIDE.format(names=hidden) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)


def run_forked(code: str, hidden: tuple[str, ...] = ()) -> str:
    """Run code in a process that has imported torch, but neither headwise nor transformers, and return its output."""
    start = f"import importlib.util, sys\nfor name in {hidden}:\n    sys.modules.pop(name, None)\n"
    return run_fresh_python(start + HIDE.format(names=hidden) + textwrap.dedent(code))


def imported_packages(code: str) -> set[str]:
    """Return the slow packages that code imports."""
    result = run_python(f"{code}\nprint(*sys.modules)")
    assert result.returncode == 0, result.stderr
    return SLOW & set(result.stdout.split())


def test_import_headwise_imports_no_slow_package() -> None:
    assert imported_packages("import headwise") == set()


def test_attention_imports_torch_only() -> None:
    assert imported_packages("import headwise; headwise.attend; headwise.DistanceAware(heads=1)") == {"torch"}


def test_version_and_help_import_no_slow_package() -> None:
    args = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    code = f"""
from headwise.cli import main
for args in {args}:
    assert main(args) == 0
    assert not {SLOW | {"numpy"}} & set(sys.modules), args
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_missing_directories_are_reported_before_slow_imports() -> None:
    args = [["predict", "a/b/c", "x.csv", "--out", "y.csv"], ["evaluate", "a/b/c"], ["inspect", "a/b/c", "--out", "o"]]
    code = f"""
from headwise.cli import main
for args in {args}:
    assert main(args) == 2
    assert not {SLOW} & set(sys.modules), args
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("no such directory") == len(args)


@pytest.mark.parametrize("task", ["text", "mind", "translation"])
def test_data_is_loaded_without_transformers(task: str) -> None:
    """A study loads the data before its workers start, which import transformers for themselves."""
    run_forked(
        f"""
        import sys
        from importlib import import_module
        from headwise.studies import power
        from headwise.training.registry import get_task_type

        module, name = get_task_type({task!r}).loader_path.split(":")
        assert callable(getattr(import_module(module), name))
        assert "transformers" not in sys.modules
        """
    )


def test_a_name_is_looked_up_once() -> None:
    run_forked(
        """
        import headwise
        assert "attend" not in vars(headwise)
        attend = headwise.attend
        assert vars(headwise)["attend"] is attend
        """
    )


def test_extras_name_the_packages_of_pyproject() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    def modules(extra: str) -> set[str]:
        found: set[str] = set()
        for requirement in extras[extra]:
            name = requirement.split(">")[0]
            if name.startswith("headwise["):
                found |= set.union(*map(modules, name[len("headwise[") : -1].split(",")))
            else:
                found.add(MODULES.get(name, name.replace("-", "_")))
        return found

    assert {extra: set(names) for extra, names in EXTRAS.items() if extra != "inspect"} == {
        extra: modules(extra) for extra in ("hf", "train", "studies")
    }
    assert set(EXTRAS["inspect"]) <= modules("inspect")


HF, STUDIES = EXTRAS["hf"], EXTRAS["studies"]


@pytest.mark.parametrize("module", ["integrations", "guides", "guidance", "models"])
def test_python_names_the_missing_extra(module: str) -> None:
    result = run_python(f"import headwise.{module}", hidden=HF)
    needs = "needs transformers and 5 other packages: pip install 'headwise[hf]'"
    assert result.stderr.splitlines()[-1] == f"headwise._extras.MissingExtraError: headwise.{module} {needs}"


def test_benchmarks_need_no_training() -> None:
    hidden = ("bm25s", "datasets", "pyarrow", "sacrebleu", "seqeval")
    modules = "attention, formulas, fusion, guiding, measure, report, runner"
    result = run_python(f"from headwise.bench import {modules}\nimport headwise.cli.bench", hidden=hidden)
    assert result.returncode == 0, result.stderr


def test_names_of_headwise_name_the_missing_extra() -> None:
    code = """
        import headwise
        try:
            headwise.retrofit
        except ImportError as error:
            print(error)
    """
    result = run_python(code, hidden=HF)
    assert result.stdout == (
        "headwise.integrations needs transformers and 5 other packages: pip install 'headwise[hf]'\n"
    )


@pytest.mark.parametrize(
    ("args", "hidden", "expected"),
    [
        (["train", "--data", "a.csv", "--out", "run"], STUDIES, "headwise[train]"),
        (["evaluate", "run"], STUDIES, "headwise[train]"),
        (["predict", "run", "a.csv", "--out", "b.csv"], STUDIES, "headwise[train]"),
        (["tasks"], STUDIES, "headwise[train]"),
        (["inspect", "run", "--out", "page.html"], STUDIES, "headwise[inspect]"),
        (["bench", "attention"], STUDIES, "headwise[inspect]"),
        (["simulate", "mind", "--out", "log", "--titles", "titles"], STUDIES, "headwise[train]"),
        (["train", "--data", "a.csv", "--out", "run"], ("seqeval",), "seqeval: pip install 'headwise[train]'"),
        (["compare", "--data", "a.csv", "--methods", "plain", "--out", "x"], ("optuna",), "headwise[studies]"),
        (["sweep", "--data", "a.csv", "--out", "x"], ("optuna", "sqlalchemy"), "headwise[studies]"),
        (["compare", "--data", "a.csv", "--out", "x"], STUDIES, "headwise[studies]"),
        (["reproduce", "--list"], ("optuna",), "headwise[studies]"),
        (["studies"], ("optuna",), "headwise[studies]"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_command_line_names_the_missing_extra(args: list[str], hidden: tuple[str, ...], expected: str) -> None:
    result = run_python(f"from headwise.cli import main; sys.exit(main({args}))", hidden=hidden)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"headwise: error: headwise {args[0]} needs ")
    assert result.stderr.count("\n") == 1
    assert expected in result.stderr


@pytest.mark.parametrize("args", [["--version"], ["--help"]])
def test_version_and_help_need_no_extra(args: list[str]) -> None:
    result = run_python(f"from headwise.cli import main; sys.exit(main({args}))", hidden=("torch", "numpy", *STUDIES))
    assert result.returncode == 0, result.stderr


#: Code that removes what Windows does not have.
LIKE_WINDOWS = """
import os, signal
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGCHLD"):
    delattr(signal, name)
for name in ("fork", "getuid", "geteuid", "killpg", "pread", "O_CLOEXEC"):
    delattr(os, name)
"""
POSIX_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")


def test_operator_runs_without_posix_modules() -> None:
    code = """
import torch
import headwise as hw
q = torch.randn(1, 2, 8, 4)
for backend in ("reference", "blockwise"):
    assert hw.attend(q, q, q, scheme=hw.DistanceAware(heads=2), backend=backend).shape == q.shape
"""
    code = code.replace("import headwise", f"{LIKE_WINDOWS}import headwise")  # torch uses them where they exist
    run_forked(code, hidden=POSIX_MODULES)


def test_hugging_face_models_run_without_posix_modules() -> None:
    code = """
import torch, transformers, transformers.models.bert.modeling_bert, accelerate
from transformers import BertConfig, BertForSequenceClassification, Trainer
import headwise as hw
size = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
model = BertForSequenceClassification(BertConfig(**size))
hw.retrofit(model, hw.DistanceAware)
inputs = {"input_ids": torch.arange(10).view(2, 5), "labels": torch.tensor([0, 1])}
with hw.guiding(model, [hw.guides.MapDiscrimination(0.1)]) as guided:
    loss = model(**inputs).loss
    (loss + sum(guided.losses(loss).values())).backward()
hw.models.HeadwiseConfig(), hw.GuidedTrainer
from headwise import locks
from pathlib import Path
import tempfile
with tempfile.TemporaryDirectory() as directory, locks.lock_output(Path(directory) / "run", is_directory=True):
    pass
"""
    imports, rest = code.split("import headwise as hw\n")
    output = run_forked(f"{imports}{LIKE_WINDOWS}import headwise as hw\n{rest}", hidden=("fcntl",))
    assert "Windows has no such locks" in output
