"""The engine that runs the parts of a job as tasks of a Ray cluster.

Ray repeats tasks whose worker or node has died. The nodes must share the file system of the run and of the output.
"""

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from headwise.cluster import connected_to_cluster
from headwise.csv_cells import is_safe_csv, safe_csv
from headwise.errors import UserError, to_one_line
from headwise.training.jobs.engines import run_in_worker
from headwise.training.jobs.job import MAX_ATTEMPTS, PartFailedError, PartRunner, Progress, Result

logger = logging.getLogger(__name__)


def run_on_cluster(
    runner: PartRunner, parts: Mapping[int, Any], progress: Progress, *, address: str
) -> Iterator[tuple[int, Result]]:
    """Run parts on a Ray cluster, one on each GPU, or on each core of a cluster without GPUs.

    Raises:
        UserError: there is no such cluster, a part is invalid, or a part failed repeatedly.
    """
    if not parts:
        return
    with connected_to_cluster(address):
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, WorkerCrashedError

        resources = ray.cluster_resources()
        resource = "GPU" if resources.get("GPU") else "CPU"
        num_nodes = sum(node["Alive"] for node in ray.nodes())
        logger.info(
            "starting on the Ray cluster %s: parts %s, nodes %s, %ss %s",
            ray.get_runtime_context().gcs_address,
            f"{len(parts):,}",
            num_nodes,
            resource,
            int(resources.get(resource, 0)),
        )
        task = ray.remote(run_on_node).options(
            num_cpus=1,
            num_gpus=1 if resource == "GPU" else 0,
            max_retries=MAX_ATTEMPTS - 1,
            retry_exceptions=True,
            scheduling_strategy="SPREAD",
        )
        job_id, shared_runner, directory = uuid4().hex, ray.put(runner), Path.cwd()
        waiting, running = deque(parts), dict[Any, int]()
        while waiting or running:
            limit = 2 * max(int(ray.cluster_resources().get(resource, 0)), 1)  # nodes may join and leave
            while waiting and len(running) < limit:
                number = waiting.popleft()
                running[task.remote(job_id, shared_runner, number, parts[number], is_safe_csv(), directory)] = number
            (reference,), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(reference)
            try:
                message, result = ray.get(reference)
            except (WorkerCrashedError, NodeDiedError, OutOfMemoryError):
                raise PartFailedError(
                    f"{parts[number]}: its process died {MAX_ATTEMPTS} times on the cluster, perhaps for lack of "
                    "memory; use a smaller --part-rows"
                ) from None
            except RayError as error:
                cause = getattr(error, "cause", None) or error
                last_line = (str(cause).strip().splitlines() or [""])[-1]
                reason = to_one_line(f"{type(cause).__name__}: {last_line}")
                raise PartFailedError(
                    f"{parts[number]}: failed {MAX_ATTEMPTS} times on the cluster ({reason})"
                ) from None
            if message:
                raise UserError(message)
            progress(parts[number].num_rows)
            yield number, result


def run_on_node(
    job_id: str, runner: PartRunner, number: int, part: Any, is_safe: bool, directory: Path
) -> tuple[str, Result]:
    """Run a part in a process of a node.

    Args:
        job_id, runner, number, part: as for `run_in_worker`.
        is_safe: whether CSV cells are written safely.
        directory: the working directory of the command, to which paths are relative. Absolute paths do not need it.

    Returns:
        The message of a UserError, which is not repeated, or an empty text; and the result.
    """
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        with safe_csv(is_safe), chdir(directory) if directory.is_dir() else nullcontext():
            return "", run_in_worker(job_id, runner, number, part)
    except UserError as error:
        return str(error), {}
