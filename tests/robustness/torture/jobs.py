"""Commands that are killed, and what they leave behind when they were not."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headwise.locks import LOCK_FILE

#: Keys of metrics that differ between two equal runs.
TIMES = ("train_seconds", "examples_per_second", "impressions_per_second", "peak_memory", "decoding")

SMALL = ("--heads", 2, "--head-dim", 4, "--word-dim", 8, "--batch-size", 16, "--learning-rate", 0.01)


@dataclass(frozen=True)
class Job:
    """A command that takes a while.

    Args:
        start: the command.
        resume: the command that continues it; None if it is started again.
        begins: the file that exists once there is something to resume.
        ends: the file that exists when it has finished.
        outcome: reads the results from its directory, to compare them.
        is_study: whether the command starts workers.
        file: the file that it writes; empty if it writes a directory.
    """

    start: tuple[Any, ...]
    resume: tuple[Any, ...] | None
    begins: str
    ends: str
    outcome: Callable[[Path], Any]
    is_study: bool = False
    file: str = ""

    def command(self, out: Path) -> tuple[Any, ...]:
        """Return the command that starts or resumes it in a directory."""
        is_resumed = self.resume is not None and (out / self.begins).exists()
        args = self.resume if self.resume is not None and is_resumed else self.start
        return (*args, "--out", out / self.file if self.file else out)


def read_metrics(out: Path) -> Any:
    """Return the metrics of a run, except for times."""
    metrics = json.loads((out / "metrics.json").read_text())
    for name in TIMES:
        metrics.pop(name, None)
    timed = ("_runtime", "_per_second")
    metrics["history"] = [{k: x for k, x in log.items() if not k.endswith(timed)} for log in metrics["history"]]
    return metrics


def read_run(out: Path) -> Any:
    """Return everything that a run has computed, except for times."""
    metrics = read_metrics(out)
    weights = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert weights, f"{out}: no weights"
    return metrics, weights, pq.read_table(out / "predictions.parquet").to_pydict()


def read_adapted(out: Path) -> Any:
    """Return everything that continued pre-training has computed, except for times."""
    metrics = read_metrics(out)
    return metrics, {path.name: path.read_bytes() for path in out.glob("*.safetensors")}


def read_study(out: Path) -> Any:
    """Return the metrics and losses of all runs of a study."""
    outcome = {}
    for path in sorted(out.rglob("metrics.json")):
        metrics = json.loads(path.read_text())
        losses = [log["loss"] for log in metrics["history"] if "loss" in log]
        outcome[str(path.parent.relative_to(out))] = metrics["metrics"], losses
    return outcome


def read_files(out: Path) -> Any:
    """Return the content of all files but locks, which a killed command leaves behind unlocked."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and not path.name.endswith(LOCK_FILE)]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def read_evaluation(name: str, out: Path) -> Any:
    """Return the metrics of an evaluation."""
    metrics = json.loads((out / name).read_text())
    return {key: value for key, value in metrics.items() if key not in TIMES}


def run_job(*options: Any) -> Job:
    return Job(("train", *options), ("train", "--resume"), "run.yaml", "metrics.json", read_run)


def file_job(file: str, outcome: Callable[[Path], Any], *args: Any) -> Job:
    return Job(args, None, "", file, outcome, file=file)


def part_job(file: str, outcome: Callable[[Path], Any], *args: Any) -> Job:
    """Return a job whose finished parts are stored next to its file."""
    return Job(args, (*args, "--resume"), f".{file}.parts", file, outcome, file=file)


def build_jobs(data: "Data") -> dict[str, Job]:
    """Return the jobs of all kinds."""
    reviews, pairs, log = ("--data", data.reviews), ("--data", data.pairs), ("--data", data.log)
    few_runs = ("--methods", "plain", "rpr", "--seeds", 2, "--epochs", 3, "--jobs", 2)
    values = ("--over", "learning_rate", 0.01, 0.001, "--epochs", 3, "--jobs", 2)
    translation = (
        "--source", "en", "--target", "de", "--model", "small", "--layers", 1, "--heads", 2, "--head-dim", 32,
        "--feedforward", 64, "--dropout", 0.0, "--vocabulary", 300, "--batch-size", 800, "--warmup", 40,
        "--max-length", 16, "--early-stopping-patience", 99, "--beams", 2, "--steps", 30, "--average", 3,
        "--scheme", "rpr",
    )  # fmt: skip
    simulation = ("--titles", data.titles, "--impressions", 3000, "--users", 300, "--candidates", 10, "--past", 3)
    adaptation = ("--steps", 30, "--save-steps", 5, "--batch-size", 8, "--max-length", 32)
    study = partial(Job, begins="study.yaml", outcome=read_study, is_study=True)
    return {
        # With dropout, whose random numbers continue, and with patience, whose count continues.
        "text": run_job(*reviews, *SMALL, "--epochs", 6, "--early-stopping-patience", 2, "--dropout", 0.2),
        "adapt": Job(
            ("adapt", data.bert, *reviews, *adaptation),
            ("adapt", "--resume"),
            "adapt.yaml",
            "metrics.json",
            read_adapted,
        ),
        # With weights of guides that are computed during training.
        "guided": run_job(*reviews, "--model", data.bert, "--guides", "mdg", "pdg", "--epochs", 3, "--batch-size", 16),
        "recommendation": run_job("--task", "mind", *log, *SMALL[:6], "--epochs", 3, "--batch-size", 16),
        "translation": run_job("--task", "translation", *pairs, *translation),
        "compare": study(
            start=("compare", *reviews, *SMALL, *few_runs), resume=("compare", "--resume"), ends="report.html"
        ),
        "sweep": study(start=("sweep", *reviews, *SMALL, *values), resume=("sweep", "--resume"), ends="sweep.csv"),
        "simulate": Job(("simulate", "mind", *simulation), None, "", "truth.json", read_files),
        "predict": part_job("labelled.csv", read_files, "predict", data.run, data.texts, "--part-rows", 100),
        "evaluate": part_job(
            "test.json", partial(read_evaluation, "test.json"), "evaluate", data.run, "--part-rows", 5
        ),
        "inspect": file_job("page.html", read_files, "inspect", data.run, "--text", "a good film"),
    }


@dataclass(frozen=True)
class Data:
    """Small data of all kinds, and a trained model."""

    reviews: Path
    texts: Path
    titles: Path
    pairs: Path
    log: Path
    bert: Path
    run: Path
