"""Installation in empty environments: the package without extras, and with all of them. Both need a package index."""

import csv
import json
import os
import random
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out_dir, ROOT])
    (path,) = out_dir.glob("*.whl")
    return path


def run(command: list[object], cwd: Path | None = None) -> str:
    """Run a command without the repository's sources on the path, and return its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    words = [str(word) for word in command]
    process = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{words}: {process.stdout[-3000:]}{process.stderr[-3000:]}"
    return process.stdout


def install(requirement: str, directory: Path) -> Path:
    """Install a requirement in a new virtual environment and return its interpreter."""
    venv.create(directory, with_pip=True)
    python = directory / ("Scripts" if os.name == "nt" else "bin") / "python"
    options = ["--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt"]
    run([python, "-m", "pip", "install", *options, requirement])
    return python


def installed_packages(python: Path) -> set[str]:
    packages = json.loads(run([python, "-m", "pip", "list", "--format", "json"]))
    return {package["name"].lower() for package in packages}


def operator_example() -> str:
    """Return the README's example of the operator."""
    (example,) = re.findall(r"## The operator\n\n```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert "hw.attend(" in example
    return str(example)


def test_package_without_extras_runs_the_operator(wheel: Path, tmp_path: Path) -> None:
    python = install(str(wheel), tmp_path / "venv")
    packages = installed_packages(python)
    assert {"headwise", "numpy", "torch"} <= packages
    assert not packages & {"transformers", "matplotlib", "datasets", "scikit-learn", "optuna", "rich", "pyyaml"}
    assert run([python, "-c", operator_example()], cwd=tmp_path).startswith("reference: ")
    assert run([python, "-m", "headwise", "--version"], cwd=tmp_path).startswith("headwise ")
    process = subprocess.run(
        [python, "-m", "headwise", "train", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert process.stderr.endswith("pip install 'headwise[train]'\n")
    assert process.stderr.count("\n") == 1
    assert "--head-dims" in run([python, "-m", "headwise", "warm-up", "--help"], cwd=tmp_path)


def test_all_extras_run_the_operator_and_the_command_line(wheel: Path, tmp_path: Path) -> None:
    python = install(f"{wheel}[all]", tmp_path / "venv")
    run([python, "-m", "pip", "check"])
    run([python, "-c", operator_example()], cwd=tmp_path)
    run([python, "-c", "import headwise; [getattr(headwise, name) for name in headwise.__all__]"], cwd=tmp_path)
    chooser = random.Random(0)
    with (tmp_path / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(chooser.choice(["good", "bad"]), chooser.randrange(100)) for _ in range(120)]
        csv.writer(file).writerows([("text", "label"), *((f"a {word} film {number}", word) for word, number in rows)])
    headwise = [python, "-m", "headwise"]
    size = ["--model", "plain", "--heads", 1, "--head-dim", 4, "--word-dim", 4, "--epochs", 1]
    run([*headwise, "train", "--data", "reviews.csv", *size, "--out", "run"], cwd=tmp_path)
    run([*headwise, "predict", "run", "reviews.csv", "--out", "answers.csv"], cwd=tmp_path)
    run([*headwise, "inspect", "run", "--text", "a good film", "--out", "page.html"], cwd=tmp_path)
    study = ["--data", "reviews.csv", "--methods", "rpr", *size[2:], "--seeds", 2, "--out", "study"]
    run([*headwise, "compare", *study], cwd=tmp_path)
    assert (tmp_path / "study" / "report.html").is_file()
