"""`headwise compare` with small real runs."""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import TrainerCallback

import headwise as package
from headwise.cli import main
from headwise.studies import compare
from headwise.studies.methods import Method, parse_method
from headwise.studies.study import Study
from headwise.studies.worker import train_run
from headwise.studies.worker_pool import Resources
from headwise.training import TextConfig, train
from headwise.training.core.callbacks import extra_callbacks
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.registry import load_config
from tests.short_form import choose_size
from tests.studies.fakes import work
from tests.training.conftest import Headwise, rows, write

SMALL = ("--heads", 2, "--head-dim", 8, "--word-dim", 16, "--batch-size", 16)


def small_config(data: Path) -> TextConfig:
    epochs = choose_size(short=1, long=2)
    return TextConfig(data=(str(data),), heads=2, head_dim=8, word_dim=16, batch_size=16, epochs=epochs)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "reviews.csv", ("text", "label"), list(rows(60)))


class RecordStart(TrainerCallback):
    """Records the initial weights and the batches of a run."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights = {name: value.clone() for name, value in kwargs["model"].state_dict().items()}
        sampler = kwargs["train_dataloader"].batch_sampler
        self.batches = []
        for epoch in (0, 1):
            sampler.epoch = epoch
            self.batches.append(list(sampler))


def test_methods_share_splits_batches_and_initial_weights(data: Path, bert: Path, tmp_path: Path) -> None:
    methods = [
        parse_method("plain"),
        parse_method("rpr"),
        parse_method(f"{bert}+retrofit:distance-aware"),
        parse_method(f"{bert}+mdg"),
    ]
    study = compare.create_comparison([small_config(data)], methods, 1, tmp_path / "study")
    starts: dict[str, RecordStart] = {}

    def recording_train(config: Any, run_dir: Path, resume: bool) -> dict[str, Any]:
        name = f"{Path(config.model).name} {config.retrofit} {config.guides}"
        with extra_callbacks(starts.setdefault(name, RecordStart())):
            return train_run(config, run_dir, resume)

    work(study, recording_train)
    results = study.results()
    assert [result.method for result in results] == ["none", bert.name, "plain", "rpr", *(m.name for m in methods[2:])]
    columns = ["split", "row", "label"]
    first_rows, *other_rows = (pq.read_table(r.run_dir / "predictions.parquet").select(columns) for r in results)
    assert all(table.equals(first_rows) for table in other_rows), "the same splits"
    from_scratch = [start for name, start in starts.items() if name.split()[0] in ("none", "plain", "rpr")]
    pretrained = [start for start in starts.values() if start not in from_scratch]
    assert (len(from_scratch), len(pretrained)) == (3, 3)
    for first, *others in (from_scratch, pretrained):
        for start in others:
            assert start.batches == first.batches, "the same batches in the same order"
            shared = start.weights.keys() & first.weights.keys()
            assert len(shared) >= 10
            assert all(torch.equal(start.weights[name], first.weights[name]) for name in shared)


def test_compare_from_file_to_report(
    data: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, study_log: list[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(package.__file__).parents[1]))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if choose_size(short=True, long=False):  # test_worker_pool.py starts workers in the short form
        monkeypatch.setattr(Study, "run", lambda self, _, add_runs=None: work(self, train_run, add_runs))
    out = tmp_path / "study"
    sizes = choose_size(short=("--jobs", 1, "--epochs", 1), long=("--jobs", 2, "--epochs", 2))
    code, output, errors = headwise(
        "compare", "--data", data, "--methods", "rpr", "--seeds", 2, *sizes, "--out", out, *SMALL
    )
    assert code == 0, errors
    assert "added the control none for rpr" in study_log
    assert errors.count("] reviews.csv, ") == 4, "a line for each run"
    assert "[4/4]" in errors
    assert "compared with none" in output
    assert {path.name for path in out.iterdir()} >= {"report.html", "table.md", "table.tex", "table.csv", "study.yaml"}
    run_dir = out / "runs" / "reviews.csv" / "rpr" / "seed-1"
    single = train(load_config(run_dir / "run.yaml"), tmp_path / "single").metrics
    metrics = json.loads((run_dir / "metrics.json").read_text())
    accuracies = [each["metrics"]["test"]["accuracy"] for each in (metrics, single)]
    assert accuracies[0] == pytest.approx(accuracies[1]), "the same as a single run"
    assert not (run_dir / "checkpoints").exists()

    code, output, _ = headwise("studies", out)
    assert code == 0
    assert "4 finished" in output
    code, _, errors = headwise("compare", "--resume", "--out", out)
    assert (code, "4 of 4 runs have already ended" in errors) == (0, True)


def test_results_without_failed_runs(
    data: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], study_log: list[str]
) -> None:
    lost = Path(shutil.copytree(bert, tmp_path / "lost"))
    methods = [parse_method("plain"), Method("lost", {"model": str(lost)})]
    study = compare.create_comparison([small_config(data)], methods, 2, tmp_path / "study")
    shutil.rmtree(lost)
    work(study, train_run)
    capsys.readouterr()
    assert not compare.run_comparison(study, Resources(1)), "some runs failed"
    assert "plain" in capsys.readouterr().out
    missing = f"not finished: reviews.csv, lost, seed 0 and 1 more: {lost}: no such directory"
    assert study_log[-2].startswith(missing)
    assert study_log[-1] == f"to retry: headwise compare --resume --out {tmp_path / 'study'}"
    for name in ("report.html", "table.md"):
        report = (tmp_path / "study" / name).read_text(encoding="utf-8")
        assert missing in report, "missing runs are listed"


def test_all_runs_fail(tmp_path: Path, study_log: list[str]) -> None:
    config = small_config(tmp_path / "missing.csv")
    study = compare.create_comparison([config], [parse_method("plain")], 1, tmp_path / "study")
    work(study, train_run)
    assert not compare.run_comparison(study, Resources(1))
    messages = "\n".join(study_log)
    assert "no run has finished" in messages
    assert "missing.csv: no such file" in messages


@pytest.fixture
def comparison_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that the command line passes to `create_comparison`, which is not executed."""
    arguments: dict[str, Any] = {}

    def create_comparison(base_configs: Any, methods: Any, seeds: int, out_dir: Path, **options: Any) -> None:
        arguments.update(base_configs=base_configs, methods=methods, seeds=seeds, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "create_comparison", create_comparison)
    return arguments


def test_every_task_has_a_base_config(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, comparison_arguments: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = {"a": (0, 1), "b": (1, 2)}  # of SST-2 and AG's News
    for directory, split in itertools.product(labels, ("train", "dev", "test")):
        bad, good = labels[directory]
        Path(directory).mkdir(exist_ok=True)
        Path(directory, f"{split}.csv").write_text("text,label\n" + 10 * f"good film,{good}\nbad film,{bad}\n")
    tasks = ("--task", "sst2=a", "--task", "ag-news=b")
    assert headwise("compare", *tasks, "--methods", "plain", "--epochs", 3, "--out", "study")[0] == 130
    configs = [(config.task, config.data, config.epochs) for config in comparison_arguments["base_configs"]]
    assert configs == [("sst2", ("a",), 3), ("ag-news", ("b",), 3)]
    assert comparison_arguments["seeds"] == 10


def test_methods_with_training_options(
    tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch, comparison_arguments: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.csv"), ("text", "label"), list(rows(20)))
    methods = ("bert+pdg=0.1", "wide=--model rpr --heads 32", "default=")
    assert headwise("compare", "--data", "a.csv", "--methods", *methods, "--out", "study")[0] == 130
    assert comparison_arguments["methods"] == [
        parse_method("bert+pdg=0.1"),
        Method("wide", {"model": "rpr", "heads": 32}),
        Method("default", {}),
    ]
    code, _, errors = headwise("compare", "--data", "a.csv", "--methods", "wide=--hats 3", "--out", "study")
    assert code == 2
    assert "--methods wide" in errors
    assert "--hats" in errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--methods", "plain"], "--out"),
        (["--out", "study"], "--methods"),
        (["--out", "study", "--methods", "plain"], "--data"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain+mdg+"], "expected MODEL"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--baseline", "rpr"], "--baseline rpr: expected"),
        (["--out", "study", "--data", "a.csv", "--methods", "none"], "expected at least two methods"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--seeds", "0"], "--seeds must be at least 1"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--jobs", "0"], "--jobs must be at least 1"),
        (["--out", "study", "--data", "a", "--task", "a", "--task", "b", "--methods", "plain"], "--data"),
        (["--out", "study", "--resume"], "contains no study"),
        (["--out", "study", "--data", "b.csv", "--methods", "plain"], "b.csv: no such file or directory"),
        (["--out", "study", "--data", "a.csv", "--methods", "plain", "--storage", "ftp://x/y"], "got ftp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_user_errors_are_one_line_and_leave_no_files(
    args: list[str], message: str, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.csv"), ("text", "label"), list(rows(20)))
    code, _, errors = headwise("compare", *args)
    assert code == 2, errors
    (line,) = (line for line in errors.splitlines() if "added the control" not in line)
    assert message in line
    assert os.listdir(tmp_path) == ["a.csv"]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["plain", "plian"], "--methods plian: unknown method 'plian'"),
        (["plian"], "did you mean plain?"),
        (["plain", "{bert}+mgd"], "+mgd: --guides mgd: unknown guide 'mgd'"),
        (["{bert}+mgd"], "did you mean mdg?"),
        (["{bert}+mdg@2"], "--guides mdg@2: the model has 2 layers, 0 to 1"),
        (
            ["{bert}+retrofit:rrp"],
            "one of distance-aware, rpr, t5-bias, disentangled, alibi; got 'rrp'",
        ),
        (["plain+mdg"], "guides require a Hugging Face model; plain is trained from scratch"),
        (["plain+retrofit:rpr"], "retrofit requires a Hugging Face model; plain already has a scheme"),
        (["wide=--model ./no/model"], "--methods wide: ./no/model: no such directory"),
        (["{bert}", "wide=--model rpr --vectors no.npz"], "no.npz: no such file"),
        (["{bert}+mdg", "low=--model plain --lora"], "--methods low: --lora is for pretrained models"),
        (["{bert}+mdg", "low=--model {bert} --lora --lora-target-modules qurey"], "qurey: no such linear layer"),
        (["{bert}+retrofit:rpr", "low=--model {bert} --lora --retrofit rpr"], "--lora and --retrofit exclude each"),
        (["plain", "rmse=--model plain --metric-for-best-model rmse"], "classification labels have accuracy"),
        (["plain", "ratings=--model plain --label-type regression --class-weights balanced"], "apply to ratings"),
        (["plain", "k=--model plain --scheme-options k=8"], "--methods k: scheme_options: plain has no options"),
        (["plain", "first=--model plain --classifier first-token"], "--classifier is for Hugging Face models"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_methods_are_checked_before_the_first_run(
    methods: list[str], message: str, data: Path, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    names = [method.format(bert=bert) for method in methods]
    code, _, errors = headwise("compare", "--data", data, "--methods", *names, "--out", tmp_path / "study")
    assert code == 2
    assert message in errors.splitlines()[-1]
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["plain", "plian"], "--methods plian: unknown method 'plian'"),
        (["plain", "wide=--model ./no/model"], "--methods wide: ./no/model: no such directory"),
        (["plain", "words=--model rpr --vectors no.npz"], "no.npz: no such file"),
        (["plain", "k=--model plain --scheme-options k=8"], "--methods k: scheme_options: plain has no options"),
        (["plain", "k=--model {bert} --scheme-options k=8"], "--scheme-options applies to models trained from scratch"),
        (["plain", "words=--model {bert} --vectors {bert}/config.json"], "--vectors applies to models trained from"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_methods_for_click_logs_are_checked_before_the_first_run(
    methods: list[str], message: str, bert: Path, tmp_path: Path, headwise: Headwise
) -> None:
    log = tmp_path / "log"
    for split in ("train", "dev", "test"):
        (log / split).mkdir(parents=True)
        (log / split / "news.tsv").write_text(
            "".join(f"{name}\tsports\tcup\tThe cup\t\t\t[]\t[]\n" for name in ("N1", "N2"))
        )
        (log / split / "behaviors.tsv").write_text("1\tU1\t11/11/2019 9:05:58 AM\t\tN1-1 N2-0\n")
    names = [method.format(bert=bert) for method in methods]
    code, _, errors = headwise("compare", "--task", f"mind={log}", "--methods", *names, "--out", tmp_path / "study")
    assert code == 2
    assert message in errors.splitlines()[-1]
    assert not (tmp_path / "study").exists()


def stop_study(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("stopped", ["run", "report"])
def test_stopped_study_names_the_command_to_resume(
    stopped: str, data: Path, tmp_path: Path, headwise: Headwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "run", stop_study if stopped == "run" else lambda self, *_: None)
    monkeypatch.setattr(compare, "report_comparison", stop_study)
    out = tmp_path / "study"
    code, _, errors = headwise("compare", "--data", data, "--methods", "plain", "--out", out)
    assert code == 130
    assert f"headwise compare --resume --out {out}" in errors
    code, output, _ = headwise("studies", tmp_path)
    assert "20 waiting" in output


@pytest.mark.long
def test_simulated_log_in_which_distance_matters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["world peace", "sports cup", "bank stock", "tech chip"]
    titles = write(tmp_path / "news.csv", ("title", "label"), [(f"{words[i % 4]} {i}", str(i % 4)) for i in range(40)])
    options = ["--clicks", "distance", "--impressions", "100", "--users", "10", "--history", "8", "--candidates", "5"]
    assert main(["simulate", "mind", "--titles", str(titles), *options, "--out", str(tmp_path / "log")]) == 0
    config = RecommendationConfig(
        task="mind", data=(str(tmp_path / "log"),), heads=2, head_dim=4, word_dim=8, epochs=1, batch_size=32
    )
    methods = [parse_method("plain"), parse_method("distance-aware")]
    study = compare.create_comparison([config], methods, 2, tmp_path / "study")
    work(study, train_run)
    compare.report_comparison(study)
    output = " ".join(capsys.readouterr().out.split())
    assert not study.unfinished()
    assert "distance-aware" in output
    assert "auc" in output
