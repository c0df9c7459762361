"""benchmarks/pack_offline.py and run_offline.sh: parts are complete, and studies resume from a packed state."""

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headwise.studies.worker_pool import JOBS_VARIABLE

ROOT = Path(__file__).parents[1]

#: Stands for Python. In place of fair_studies.py, it finishes one study and begins another, or finishes that one.
FAKE_PYTHON = """#!/usr/bin/env bash
[ "$1" = -c ] && { echo 3.12; exit; }
echo "arguments: $*"
echo "WordNet: $WNSEARCHDIR"
case "$*" in *--endless*) while :; do sleep 0.1; done ;; esac
mkdir -p out/first out/second
[ -e out/second/study.yaml ] && touch out/second/finished
touch out/first/study.yaml out/first/finished out/second/study.yaml out/second/study.db out/second/model.safetensors
"""


def read_names(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {member.name for member in archive if member.isfile()}


def write_archive(path: Path, folder: Path, name: str) -> None:
    with tarfile.open(path, "w:xz") as archive:
        archive.add(folder / name, name)


def test_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data, out, model = tmp_path / "data", tmp_path / "offline", tmp_path / "tiny"
    for folder in (data / "sst2", data / "multi30k", out, model):
        folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (data / f"sst2/{split}.csv").write_text(f"text,label\nA {split} film,positive\n")
    for language in ("en", "de", "fr"):
        (data / f"multi30k/train.{language}").write_text("film\n")
    (tmp_path / "vectors.txt").write_text("film 0.5 1\nunseen 2 3\ndev 1 2\n")
    (model / "config.json").write_text("{}")
    save_file({"weight": torch.tensor([0.5, 1.0]), "ids": torch.tensor([1])}, model / "model.safetensors")
    (out / "site.tar.xz").write_bytes(b"x" * 2**20)
    options = ["--out", out, "--data", data, "--vectors", tmp_path / "vectors.txt", "--model", model]
    options += ["--sets", "sst2", "snli", "multi30k", "--limit-mib", "1"]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["pack_offline.py", *map(str, options)])
    runpy.run_path(str(ROOT / "benchmarks/pack_offline.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert "site.tar.xz: kept" in output
    assert "snli: skipped" in output
    assert read_names(out / "data.tar.xz") == {
        *(f"prepared/sst2/{split}.csv" for split in ("train", "dev", "test")),
        "multi30k/train.en",
        "multi30k/train.de",
    }
    with np.load(out / "glove.npz") as archive:
        assert archive["words"].tobytes().decode().split("\n") == ["dev", "film"]
        assert archive["vectors"].dtype == np.float16
        assert archive["vectors"].tolist() == [[1, 2], [0.5, 1]]
    weights = load_file(out / "tiny/model.safetensors")
    assert weights["weight"].dtype == torch.float16
    assert weights["weight"].tolist() == [0.5, 1.0]
    assert weights["ids"].dtype == torch.int64
    assert (out / "tiny/config.json").exists()
    assert "1. site.tar.xz" in output
    assert "2. " in output


def test_guides_need_wordnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(sys, "argv", ["pack_offline.py", "--out", str(tmp_path / "offline"), "--guides", str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "benchmarks/pack_offline.py"), run_name="__main__")
    assert "no data.noun" in capsys.readouterr().err


def test_packages_that_the_other_machine_has_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    reduce_packages = runpy.run_path(str(ROOT / "benchmarks/pack_offline.py"))["reduce_packages"]
    for package, name in (("numpy", "numpy"), ("markdown_it", "markdown-it-py"), ("spacy", "spacy")):
        info = f"{name.replace('-', '_')}-1.0.dist-info"
        files = {
            f"{package}/__init__.py": "",
            f"{package}/tests/test_it.py": "",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
        for file, text in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
    reduce_packages(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"spacy", "spacy-1.0.dist-info"}
    assert [path.name for path in (tmp_path / "spacy").iterdir()] == ["__init__.py"]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Parts with one file each."""
    source, parts = tmp_path / "source", tmp_path / "parts"
    folders = {"site": "site-packages", "data": "prepared/sst2", "imdb": "prepared/imdb", "guides": "wordnet"}
    for name in (
        "site-packages/python-version",
        "prepared/sst2/train.csv",
        "prepared/imdb/train.csv",
        "wordnet/data.noun",
    ):
        (source / name).parent.mkdir(parents=True)
        (source / name).write_text("3.12\n")
    (parts / "minilm").mkdir(parents=True)
    (parts / "minilm/config.json").write_text("{}")
    (parts / "glove.npz").touch()
    for archive, name in folders.items():
        write_archive(parts / f"{archive}.tar.xz", source, name)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return parts


def run_offline(parts: Path, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if not all(map(shutil.which, ("bash", "setsid", "xz"))):
        pytest.skip("bash, setsid or xz is missing")
    environment = os.environ | {
        "PARTS": str(parts),
        "WORK": str(work),
        "OUT": str(work / "packed"),
        "SITE": str(work / "site"),
        "PYTHON": str(parts.parent / "python"),
        "MPS": "no",
        "MODEL": "minilm",
    }
    command = ["bash", str(ROOT / "benchmarks/run_offline.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_only_unpack(parts: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert run_offline(parts, work, "0").returncode == 0
    for name in (
        "prepared/sst2/train.csv",
        "prepared/imdb/train.csv",
        "site/site-packages/python-version",
        "site/wordnet/data.noun",
    ):
        assert (work / name).exists()
    assert (work / "minilm/config.json").exists()
    assert not any((work / "out").iterdir())


def test_a_packed_state_is_resumed(parts: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    result = run_offline(parts, first, "600", "--only", "clicks")
    assert result.returncode == 0, result.stdout
    log = (first / "packed/log.txt").read_text()
    assert "--model minilm --vectors glove.npz --only clicks" in log
    assert f"WordNet: {first}/site/wordnet" in log
    assert read_names(first / "packed/state.tar.xz") == {"second/study.yaml", "second/study.db"}
    assert read_names(first / "packed/finished.tar.xz") == {"first/study.yaml", "first/finished"}
    state = (first / "packed/state.tar.xz").read_bytes()
    (parts / "state.tar.xz.00").write_bytes(state[:50])
    (parts / "state.tar.xz.01").write_bytes(state[50:])
    result = run_offline(parts, second, "600")
    assert result.returncode == 0, result.stdout
    assert "second/finished" in read_names(second / "packed/finished.tar.xz")
    assert not (second / "packed/state.tar.xz").exists()


def test_jobs_are_divided_among_the_studies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A study gets the jobs of one that has ended: the next one, or the last one that still runs."""
    module = runpy.run_path(str(ROOT / "benchmarks/fair_studies.py"))
    study_class, variables = module["Study"], module["run_studies"].__globals__
    wait_for = f'while [ "$(cat ${JOBS_VARIABLE})" != {{}} ]; do sleep 0.02; done'
    scripts = {
        "first": wait_for.format(8),
        "second": wait_for.format(8) + f"; touch {tmp_path}/divided; " + wait_for.format(16),
        "third": wait_for.format(8) + f"; until [ -e {tmp_path}/divided ]; do sleep 0.02; done",
    }
    studies = (study_class("group", name, "-c", (script,)) for name, script in scripts.items())
    for name in scripts:
        (tmp_path / name).mkdir()
    monkeypatch.setitem(variables, "headwise", lambda: ["bash"])
    monkeypatch.setitem(variables, "select_studies", lambda _: studies)
    module["run_studies"](Namespace(out=tmp_path, at_once=2, jobs=16, seconds=600.0))
    assert all((tmp_path / name / "finished").exists() for name in scripts)
    assert not list(tmp_path.glob("*.jobs"))


@pytest.mark.parametrize(
    ("num_jobs", "num_studies", "divided"), [(15, 3, [5, 5, 5]), (8, 3, [3, 3, 2]), (15, 1, [15]), (1, 2, [1, 1])]
)
def test_each_study_has_a_job(num_jobs: int, num_studies: int, divided: list[int], tmp_path: Path) -> None:
    module = runpy.run_path(str(ROOT / "benchmarks/fair_studies.py"))
    running = [module["RunningStudy"](module["Study"]("group", str(i), "", ())) for i in range(num_studies)]
    for _ in range(2):  # the second time, nothing is free
        module["divide_jobs"](Namespace(out=tmp_path, jobs=num_jobs), running)
        assert [x.jobs for x in running] == divided


def test_studies_are_interrupted(parts: Path, tmp_path: Path) -> None:
    result = run_offline(parts, tmp_path / "work", "1", "--endless")
    assert result.returncode == 0
    assert "time is over" in result.stdout


def test_errors(parts: Path, tmp_path: Path) -> None:
    assert "usage: " in run_offline(parts, tmp_path / "work", "--only").stderr
    (parts / "data.tar.xz").write_bytes(b"incomplete")
    result = run_offline(parts, tmp_path / "work", "0")
    assert result.returncode == 1
    assert "cannot be unpacked" in result.stdout


def test_means_over_sets_leave_out_those_that_are_not_testable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    summarize_groups = runpy.run_path(str(ROOT / "benchmarks" / "fair_studies.py"))["summarize_groups"]
    verdicts = {"sst2": ("1.0", "better"), "snli": ("2.0", "undecided"), "healthver": ("-30.0", "not testable")}
    rows = [
        {"study": f"fine-tuning-{name}", "method": "rpr", "difference": difference, "verdict": verdict}
        for name, (difference, verdict) in verdicts.items()
    ]
    assert summarize_groups(rows) == ["| fine-tuning | rpr | 2 | +1.50 | 1 | 0 |"]
