"""Runs for tests of Ray tasks. The module imports little, so that worker processes start quickly."""

import os
import time
from pathlib import Path
from typing import Any

import ray

from headwise.studies.ray_tasks import execute_task
from headwise.studies.worker import Outcome
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import write_manifest
from tests.studies.fakes import fake_train

#: Runs of this seed do not end by themselves the first time.
BLOCKED_SEED = 0


def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
    """Write down the start of a run. The first time, write a checkpoint and wait to be killed if the run is blocked."""
    starts = run_dir.parents[3] / "starts"
    starts.mkdir(exist_ok=True)
    number = len(list(starts.glob(f"{config.model}-{config.seed}-*")))
    node = ray.get_runtime_context().get_node_id()
    run_dir.mkdir(parents=True, exist_ok=True)
    if config.seed == BLOCKED_SEED and number == 0:
        (run_dir / "run.yaml").write_text(config.to_yaml())
        checkpoint = run_dir / "checkpoints" / "checkpoint-1"
        checkpoint.mkdir(parents=True)
        write_manifest(checkpoint)
    record = starts / f"{config.model}-{config.seed}-{number}"
    record.with_suffix(".part").write_text(f"{os.getpid()} {node} {resume}")
    record.with_suffix(".part").rename(record)
    while config.seed == BLOCKED_SEED and number == 0:
        time.sleep(60)
    return fake_train(config, run_dir)


def execute_blocked(request: dict[str, Any], monitor: Any) -> Outcome:
    return execute_task(request, monitor, train)


def share_gpu(request: dict[str, Any], monitor: Any) -> Outcome:
    """Take 1,000 of 10,000 MiB of a GPU. All runs but the first wait until three of them run at the same time."""
    run = request["run"]
    directory = request["study_dir"].path
    (directory / f"{run['method']}-{run['seed']}.running").touch()
    while run["seed"] > 0 and len(list(directory.glob("*-[1-9].running"))) < 3:
        time.sleep(0.05)
    return Outcome(request["trial_id"], "finished", 0.5, peak_mib=1_000, gpu_mib=10_000)


def run_out_of_memory(request: dict[str, Any], monitor: Any) -> Outcome:
    """Fail if the run shares its GPU."""
    if ray.get_runtime_context().get_assigned_resources().get("GPU", 0) < 1:
        return Outcome(request["trial_id"], "failed", error="OutOfMemoryError: CUDA out of memory")
    return Outcome(request["trial_id"], "finished", 0.5, peak_mib=1_000, gpu_mib=10_000)
