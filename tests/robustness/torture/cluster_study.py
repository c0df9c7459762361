"""The study that `make torture` runs on a cluster: many small trainings that can be resumed, and some of headwise.

    python -m tests.robustness.torture.cluster_study OUT DATA RUNS [ADDRESS STORAGE]

It creates the study or resumes it, on a cluster or, without an address, in this process.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from headwise.cluster import connected_to_cluster
from headwise.studies.methods import Method
from headwise.studies.plan import plan_runs
from headwise.studies.ray_tasks import RayTasks, execute_task
from headwise.studies.scheduler import run_study
from headwise.studies.study import Study
from headwise.studies.worker import Outcome, train_run
from headwise.training import TextConfig
from headwise.training.core.config import RunConfig
from headwise.training.core.run_dir import last_checkpoint, write_manifest
from tests.studies.fakes import work, write_run

#: Every so many seeds, a run is a training of headwise.
HEADWISE_EVERY = 25

NUM_STEPS, CHECKPOINT_STEPS = 60, 10


def train(config: RunConfig, run_dir: Path, resume: bool) -> dict[str, Any]:
    """Train a run: a logistic regression by gradient descent, or a model of headwise."""
    if config.seed % HEADWISE_EVERY == 0:
        return train_run(config, run_dir, resume)
    random = torch.Generator().manual_seed(config.seed)
    x, true_weights = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((2000, 50), (50,)))
    y = (x @ true_weights + torch.randn(2000, generator=random, dtype=torch.float64) > 0).double()
    weights, start = torch.zeros(50, dtype=torch.float64), 0
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "run.yaml").write_text(config.to_yaml())
    checkpoint = last_checkpoint(run_dir) if resume else None
    if checkpoint is not None:
        state = json.loads(Path(checkpoint, "state.json").read_text())
        weights, start = torch.tensor(state["weights"], dtype=torch.float64), state["step"]
    for step in range(start + 1, NUM_STEPS + 1):
        weights -= 0.1 * x.T @ (torch.sigmoid(x @ weights) - y) / len(x)
        if step % CHECKPOINT_STEPS == 0:
            target = run_dir / "checkpoints" / f"checkpoint-{step}"
            target.mkdir(parents=True, exist_ok=True)
            (target / "state.json").write_text(json.dumps({"weights": weights.tolist(), "step": step}))
            write_manifest(target)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ weights, y)
    return write_run(run_dir, config, {"accuracy": loss.item()})


def execute_study_task(request: dict[str, Any], monitor: Any) -> Outcome:
    return execute_task(request, monitor, train)


def open_study(out: Path, data: str, num_runs: int, storage: str | None) -> Study:
    """Create the study, or resume it."""
    if (out / "study.yaml").exists():
        return Study.resume(out, storage=storage)
    config = TextConfig(data=(data,), heads=2, head_dim=4, word_dim=8, batch_size=16, epochs=2)
    methods = [Method(name, {"model": name}) for name in ("plain", "rpr")]
    runs = plan_runs([config], methods, range(num_runs // 2))
    return Study.create(out, "compare", runs, storage=storage, baseline="plain")


def main() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    out, data, num_runs, *cluster = sys.argv[1:]
    study = open_study(Path(out), data, int(num_runs), cluster[1] if cluster else None)
    if not cluster:
        work(study, train)
        return
    with connected_to_cluster(cluster[0]):
        tasks = RayTasks(study.study_dir, study.metadata, study.url, task=execute_study_task)
        run_study(study.study_dir, study.trials, tasks)


if __name__ == "__main__":
    from tests.robustness.torture.cluster_study import main  # so that the functions of tasks are not those of __main__

    main()
