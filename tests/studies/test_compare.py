"""`headwise compare` with real runs, small ones."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import TrainerCallback

import headwise as package
from headwise.cli.study_options import resume_hint
from headwise.studies import compare
from headwise.studies.methods import Method, parse_method
from headwise.studies.worker import train_run, work
from headwise.studies.worker_pool import Resources
from headwise.training import TextConfig, train
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.registry import load_config
from tests.training.conftest import Headwise, rows, write

SMALL = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16, "--epochs", 2)


def small(data: Path, **others: Any) -> TextConfig:
    sizes: dict[str, Any] = {"heads": 2, "head_dim": 8, "word_dim": 16, "batch_size": 16, "epochs": 2}
    return TextConfig(data=(str(data),), **sizes, **others)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "reviews.csv", ("text", "label"), list(rows(60)))


class Spy(TrainerCallback):
    """Sees a run's batches, and what its model is like before the first one."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **seen: Any) -> None:
        self.start = {name: value.clone() for name, value in seen["model"].state_dict().items()}
        sampler = seen["train_dataloader"].batch_sampler
        self.batches = []
        for epoch in (0, 1):
            sampler.epoch = epoch
            self.batches.append(list(sampler))


def test_methods_differ_in_nothing_but_the_method(file: Path, bert: Path, tmp_path: Path) -> None:
    methods = [
        parse_method("plain"),
        parse_method("rpr"),
        parse_method(f"{bert}+retrofit:distance-aware"),
        parse_method(f"{bert}+mdg"),
    ]
    study = compare.create_comparison([small(file)], methods, 1, tmp_path / "study")
    spies: dict[str, Spy] = {}

    def spied(settings: Any, out: Path, resume: bool) -> dict[str, Any]:
        name = f"{Path(settings.model).name} {settings.retrofit} {settings.guides}"
        with extra_callbacks(spies.setdefault(name, Spy())):
            return train_run(settings, out, resume)

    work(study.ledger, study.folder, spied, name="worker")
    found = study.results()
    assert [one.method for one in found] == ["none", bert.name, "plain", "rpr", *(one.name for one in methods[2:])]
    first = pq.read_table(found[0].folder / "predictions.parquet").select(["split", "row", "label"])
    for one in found[1:]:
        table = pq.read_table(one.folder / "predictions.parquet")
        assert table.select(["split", "row", "label"]).equals(first), "the same splits"
    ours = [spy for name, spy in spies.items() if name.split()[0] in ("none", "plain", "rpr")]
    theirs = [spy for name, spy in spies.items() if spy not in ours]
    assert (len(ours), len(theirs)) == (3, 3)
    for family in (ours, theirs):
        for spy in family[1:]:
            assert spy.batches == family[0].batches, "the same batches in the same order"
            shared = spy.start.keys() & family[0].start.keys()
            assert len(shared) >= 10
            assert all(torch.equal(spy.start[name], family[0].start[name]) for name in shared), "the same start"


def test_from_a_file_to_an_answer(
    file: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(package.__file__).parents[1]))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "study"
    code, said, told = headwise(
        "compare", "--data", file, "--methods", "rpr", "--seeds", 2, "--jobs", 2, "--out", out, *SMALL
    )
    assert code == 0, told
    assert "Control added: none, which rpr must beat." in told
    assert told.count("] reviews.csv, ") == 4, "a line for each run"
    assert "[4/4]" in told
    assert "against none" in said.replace("\n", " ")
    assert {path.name for path in out.iterdir()} >= {"report.html", "table.md", "table.tex", "table.csv", "study.yaml"}
    run = out / "runs" / "reviews.csv" / "rpr" / "seed-1"
    alone = train(load_config(run / "run.yaml"), tmp_path / "alone").metrics
    kept = json.loads((run / "metrics.json").read_text())
    assert kept["figures"]["test"]["accuracy"] == pytest.approx(alone["figures"]["test"]["accuracy"]), "as by itself"
    assert not (run / "checkpoints").exists()

    code, said, told = headwise("studies", out)
    assert code == 0
    assert "4 finished" in said
    code, said, told = headwise("compare", "--resume", "--out", out)
    assert (code, "4 of 4 runs are there already" in told) == (0, True)


def test_what_fails_is_told_and_the_answer_made_of_the_rest(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = [parse_method("plain"), Method("lost", {"model": str(tmp_path / "no-such-model")})]
    study = compare.create_comparison([small(file)], methods, 2, tmp_path / "study")
    work(study.ledger, study.folder, train_run, name="worker")
    capsys.readouterr()
    assert not compare.run_comparison(study, Resources(1)), "something failed"
    said = capsys.readouterr()
    assert "plain" in said.out
    assert "headwise: missing: reviews.csv, lost, seed 0 and 1 more: --model" in said.err
    assert "headwise compare --resume --out" in said.err
    assert (tmp_path / "study" / "report.html").is_file()


def test_a_study_all_of_whose_runs_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = compare.create_comparison([small(tmp_path / "missing.csv")], [parse_method("plain")], 1, tmp_path / "study")
    work(study.ledger, study.folder, train_run, name="worker")
    assert not compare.run_comparison(study, Resources(1))
    told = capsys.readouterr().err
    assert "no run has finished" in told
    assert "missing.csv: no such file" in told


def test_several_tasks_have_a_base_each(tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def begin(bases: Any, methods: Any, seeds: int, out: Path, **others: Any) -> None:
        seen.update(bases=bases, methods=methods, seeds=seeds, **others)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "create_comparison", begin)
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        Path(folder).mkdir()
    tasks, methods = ("--task", "sst2=a", "--task", "ag-news=b"), ("plain", "wide=--model rpr --heads 32")
    assert headwise("compare", *tasks, "--methods", *methods, "--epochs", 3, "--out", "study")[0] == 130
    found = [(base.task, base.data, base.epochs) for base in seen["bases"]]
    assert found == [("sst2", ("a",), 3), ("ag-news", ("b",), 3)]
    assert seen["methods"] == [parse_method("plain"), Method("wide", {"model": "rpr", "heads": 32})]
    assert seen["seeds"] == 10


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--methods", "plain"], "--out FOLDER is missing"),
        (["--out", "study"], "--methods is missing"),
        (["--out", "study", "--methods", "plain"], "what to learn?"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain+mdg+"], "expected MODEL"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--baseline", "rpr"], "is none of the methods"),
        (["--out", "study", "--data", "a.csv", "--methods", "none"], "there is nothing to compare"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--seeds", "0"], "--seeds must be at least 1"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--jobs", "0"], "--jobs must be at least 1"),
        (
            ["--out", "study", "--data", "a", "--task", "a", "--task", "b", "--methods", "plain"],
            "--data is of one task",
        ),
        (["--out", "study", "--resume"], "holds no study"),
        (["--out", "study", "--data", "b.csv", "--methods", "plain"], "b.csv: no such file or folder"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--storage", "ftp://x/y"], "not in ftp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    args: list[str], told: str, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").touch()
    code, _, complained = headwise("compare", *args)
    assert code == 2, complained
    lines = [line for line in complained.splitlines() if not line.startswith("Control added")]
    assert len(lines) == 1
    assert lines[0].startswith("headwise: ")
    assert told in lines[0]
    assert os.listdir(tmp_path) == ["a.csv"]


def test_who_stops_a_study_is_told_how_it_goes_on(
    file: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headwise.studies.study.conduct", stopped)
    out = tmp_path / "study"
    code, _, told = headwise("compare", "--data", file, "--methods", "plain", "--out", out)
    assert code == 130
    assert f"headwise: stopped; headwise compare --resume --out {out} goes on" in told
    code, said, _ = headwise("studies", tmp_path)
    assert "20 waiting" in said


def test_a_study_stopped_while_it_writes_its_report_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resume_hint("compare", Path("study")):
        signal.raise_signal(signal.SIGTERM)
    assert "headwise: stopped; headwise compare --resume --out study goes on" in capsys.readouterr().err
