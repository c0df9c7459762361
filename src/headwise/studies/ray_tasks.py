"""Runs of a study as tasks of a Ray cluster. Ray assigns them to nodes and repeats those whose worker or node died."""

import math
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from headwise.cluster import connected_to_cluster
from headwise.errors import UserError
from headwise.studies.interrupts import interrupt_on
from headwise.studies.plan import Run
from headwise.studies.scheduler import AddRuns, run_study
from headwise.studies.storage import allows_several_machines
from headwise.studies.study_dir import StudyDir
from headwise.studies.trials import ClaimedTrial, Trials
from headwise.studies.worker import Outcome, TrainFunction, configure_logging, execute, format_error, train_run
from headwise.studies.worker_pool import Resources

#: After this many deaths of its worker or node, a run is not tried again by Ray, because the run may be their cause.
MAX_RETRIES = 10

#: Seconds after an interrupt until tasks are killed.
STOP_TIMEOUT = 10.0

#: A run needs more GPU memory than its tensors: the CUDA context, in MiB, and fragmentation, as a factor.
CUDA_CONTEXT_MIB, FRAGMENTATION = 800.0, 1.2

#: Shares of a GPU are multiples of it.
GPU_SHARE_STEP = 0.01

#: A function (request of a run, monitor) → outcome, which is executed as a task.
TaskFunction = Callable[[dict[str, Any], Any], Outcome]


class Monitor:
    """An actor that knows which node executes which trial. It serves the progress only: no result depends on it."""

    def __init__(self) -> None:
        self.places: dict[int, str] = {}

    def start(self, trial_id: int, place: str) -> None:
        self.places[trial_id] = place

    def get_places(self) -> dict[int, str]:
        return self.places


def execute_task(request: dict[str, Any], monitor: Any, train: TrainFunction = train_run) -> Outcome:
    """Execute a run on a node of the cluster.

    Args:
        request: the run and its study, see `RayTasks.submit`.
        monitor: the actor `Monitor`.
        train: trains a run.
    """
    import ray

    configure_logging()
    place = ray.util.get_node_ip_address()
    monitor.start.remote(request["trial_id"], place)
    study_dir: StudyDir = request["study_dir"]
    trials = study_dir.open_trials(request["url"], wait=True) if study_dir.kind == "search" else None
    claimed = ClaimedTrial(Run.from_attributes(request["run"]), request["trial_id"])
    return replace(execute(claimed, study_dir, train, trials, request["metadata"]), place=place)


class RayTasks:
    """The runs of a study as tasks of the cluster that this process is connected to, an `Engine`.

    Args:
        study_dir: the study's directory.
        metadata: the values stored with the study.
        url: the database's URL, for the pruning of a search.
        max_jobs: the number of runs at the same time; None for as many as fit.
        task: executes a run.
    """

    def __init__(
        self,
        study_dir: StudyDir,
        metadata: dict[str, Any],
        url: str,
        max_jobs: int | None = None,
        task: TaskFunction = execute_task,
    ) -> None:
        self.study_dir, self.metadata, self.url, self.max_jobs = study_dir, metadata, url, max_jobs
        self.task_function = task
        self.submitted: dict[Any, tuple[ClaimedTrial, float]] = {}  # by the task's reference: the run and its GPU share
        self.shares = GpuShares()
        self.running_places: dict[int, str] = {}
        self.place_query: Any = None

    def __enter__(self) -> "RayTasks":
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # A process that has used one GPU cannot change to another, so workers of nodes with several train one run each.
        max_calls = 1 if any(node["Resources"].get("GPU", 0) > 1 for node in ray.nodes()) else 0
        self.task: Any = ray.remote(max_retries=MAX_RETRIES, retry_exceptions=False, max_calls=max_calls)(
            self.task_function
        )
        this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.monitor: Any = (
            ray.remote(Monitor).options(num_cpus=0, max_restarts=-1, scheduling_strategy=this_node).remote()
        )
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def has_capacity(self, group: str, num_to_start: int) -> bool:
        """Return whether a run can be submitted now.

        Twice as many runs as fit are submitted, so that no node waits for this process and an autoscaler sees the
        demand. Runs whose memory is not known yet, and those of a search, are submitted when they fit.
        """
        if self.max_jobs is not None and len(self.submitted) >= self.max_jobs:
            return False
        totals = self.cluster_resources()
        num_gpus = totals.get("GPU", 0.0)
        share = self.shares.get(group) if num_gpus else 0.0
        slots = totals.get("CPU", 0.0) - len(self.submitted)
        lookahead = totals.get("CPU", 0.0)
        if num_gpus:
            used = sum(submitted_share for _, submitted_share in self.submitted.values())
            slots = min(slots, (num_gpus - used) / share)
            lookahead = min(lookahead, num_gpus / share)
        is_late = self.study_dir.kind == "search" or (num_gpus and not self.shares.is_known(group))
        return not self.submitted or slots + (0.0 if is_late else lookahead) >= 1.0 - 1e-6  # shares are rounded

    def submit(self, claimed: ClaimedTrial) -> None:
        """Submit a run as a task that needs a CPU and, on a cluster with GPUs, a share of one."""
        self._submit(claimed, self.shares.get(claimed.group) if self.cluster_resources().get("GPU") else 0.0)

    def cluster_resources(self) -> Mapping[str, float]:
        """Return the CPUs and GPUs of all nodes."""
        import ray

        resources: dict[str, float] = ray.cluster_resources()
        return resources

    def _submit(self, claimed: ClaimedTrial, share: float) -> None:
        request = {
            "trial_id": claimed.trial_id,
            "run": claimed.run.to_attributes(),
            "study_dir": replace(self.study_dir, path=self.study_dir.path.absolute()),
            "url": self.url if self.study_dir.kind == "search" else None,
            "metadata": self.metadata,
        }
        task = self.task.options(num_cpus=1, num_gpus=share, name=str(claimed.run))
        self.submitted[task.remote(request, self.monitor)] = claimed, share

    def wait(self, seconds: float) -> list[Outcome]:
        """Return the runs that have ended."""
        import ray

        if not self.submitted:
            return []
        ray.wait(list(self.submitted), timeout=seconds)
        ended, _ = ray.wait(list(self.submitted), num_returns=len(self.submitted), timeout=0)
        outcomes = []
        for reference in ended:
            claimed, share = self.submitted.pop(reference)
            outcome = self._get_outcome(reference, claimed)
            if outcome.peak_mib and outcome.gpu_mib:
                self.shares.measure(claimed.group, outcome.peak_mib, outcome.gpu_mib)
            if 0 < share < 1 and "out of memory" in outcome.error:
                self.shares.use_whole(claimed.group)
                self._submit(claimed, 1.0)
            else:
                outcomes.append(outcome)
        return outcomes

    @staticmethod
    def _get_outcome(reference: Any, claimed: ClaimedTrial) -> Outcome:
        import ray

        try:
            outcome: Outcome = ray.get(reference)
        except ray.exceptions.TaskCancelledError:
            return Outcome(claimed.trial_id, "interrupted")
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError):
            error = f"its worker or node died {MAX_RETRIES + 1} times"
            return Outcome(claimed.trial_id, "failed", error=error)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Outcome(claimed.trial_id, "failed", error=format_error(cause))
        except ray.exceptions.RayError as error:
            return Outcome(claimed.trial_id, "failed", error=format_error(error))
        return outcome

    def places(self) -> Mapping[int, str]:
        """Return the nodes on which trials run, as of the last call."""
        import ray

        if self.place_query is None:
            self.place_query = self.monitor.get_places.remote()
        elif ray.wait([self.place_query], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # the actor was killed and is restarted
                trial_ids = {claimed.trial_id for claimed, _ in self.submitted.values()}
                places = ray.get(self.place_query)
                self.running_places = {trial: place for trial, place in places.items() if trial in trial_ids}
            self.place_query = None
        return self.running_places

    def stop(self) -> None:
        """Cancel all tasks, and wait a moment for them to stop. Ray kills the others when this process disconnects."""
        import ray

        if self.submitted:
            for reference in self.submitted:
                ray.cancel(reference, force=False)
            ray.wait(list(self.submitted), num_returns=len(self.submitted), timeout=STOP_TIMEOUT)
        self.submitted.clear()


class GpuShares:
    """The share of a GPU that the runs of each group need, as measured by the first run of the group."""

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}

    def get(self, group: str) -> float:
        """Return the share for a run; a whole GPU if it is not known yet."""
        return self.shares.get(group, 1.0)

    def is_known(self, group: str) -> bool:
        """Return whether a run of the group has been measured."""
        return group in self.shares

    def measure(self, group: str, peak_mib: float, gpu_mib: float) -> None:
        """Take the memory of a finished run into account."""
        self.shares[group] = max(self.shares.get(group, 0.0), gpu_share(peak_mib, gpu_mib))

    def use_whole(self, group: str) -> None:
        """Do not share GPUs any more, because a run of the group ran out of memory."""
        self.shares[group] = 1.0


def gpu_share(peak_mib: float, gpu_mib: float) -> float:
    """Return the share of a GPU for a run with this peak memory of its tensors.

    >>> gpu_share(1000, 80_000), gpu_share(30_000, 80_000), gpu_share(50_000, 80_000)
    (0.03, 0.46, 1.0)
    """
    share = (FRAGMENTATION * peak_mib + CUDA_CONTEXT_MIB) / gpu_mib
    steps = math.ceil(share / GPU_SHARE_STEP)
    return 1.0 if share > 0.5 else round(steps * GPU_SHARE_STEP, 2)


def run_tasks(
    study_dir: StudyDir, trials: Trials, resources: Resources, url: str, add_runs: AddRuns | None = None
) -> None:
    """Run a study on a Ray cluster until all runs have ended, and show its progress.

    Args:
        study_dir: the study's directory.
        trials: the study's trials.
        resources: the cluster's address, and the number of runs at the same time.
        url: the database's URL.
        add_runs: adds runs that depend on the results of others.

    Raises:
        KeyboardInterrupt: the study was stopped; it can be resumed.
        UserError: the cluster cannot be reached, or the database cannot be used by several machines.
    """
    assert resources.cluster is not None
    if study_dir.kind == "search":
        check_search_database(url)
    with connected_to_cluster(resources.cluster), interrupt_on(signal.SIGINT, signal.SIGTERM):
        run_study(study_dir, trials, RayTasks(study_dir, trials.metadata, url, resources.jobs), add_runs)


def check_search_database(url: str | None) -> None:
    """Check that the runs of a search on a cluster can write to the database.

    Args:
        url: the database's URL; None for the file in the study's directory.

    Raises:
        UserError: only one machine can.
    """
    if url is None or not allows_several_machines(url):
        raise UserError(
            "--cluster with --sampler tpe or random: runs on several machines write to the database; expected "
            "--storage postgresql://… or journal:///FILE"
        )
