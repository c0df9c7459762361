"""One run on the GPUs of a Ray cluster: Ray Train starts the processes that torchrun would start."""

import logging
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from textwrap import shorten
from typing import Any

from headwise.cluster import MESSAGE_LENGTH, connected_to_cluster
from headwise.errors import UserError, to_one_line
from headwise.training.core import run_dir
from headwise.training.core.config import RunConfig
from headwise.training.core.distributed import main_process_only, state
from headwise.training.core.run_dir import RunResult, resume_command
from headwise.training.run import train

logger = logging.getLogger(__name__)

#: How often the processes are started again after one of them, or its node, has died.
MAX_FAILURES = 3
#: Files in the directory of Ray Train: the run has been started before, the message of a UserError, and the output of
#: the main process.
STARTED, ERROR, OUTPUT = "started", "error.txt", "output.txt"
#: Seconds between two looks at the output.
OUTPUT_INTERVAL = 0.5


def train_on_cluster(
    config: RunConfig,
    out: Path,
    *,
    address: str,
    processes: int | None = None,
    force: bool = False,
    resume: bool = False,
    **options: Any,
) -> RunResult:
    """Train a model on a Ray cluster. If a process or node dies, the run continues from its last checkpoint.

    Args:
        config: the configuration. Its files must exist on all nodes.
        out: the run directory, on a file system that all nodes share.
        address: the address of the cluster, or `auto`.
        processes: the number of processes; by default the number of GPUs, or 1.
        force, resume, options: as for `train`.

    Raises:
        KeyboardInterrupt: the user has stopped the run.
        UserError: there is no such cluster, the cluster is too small, the run fails repeatedly, or one of `train`.
    """
    if processes is not None and processes < 1:
        raise UserError(f"--processes must be at least 1, got {processes}")
    out = out.absolute()
    run_dir.check_out_dir(out, force=force, resume=resume)
    with connected_to_cluster(address):
        import ray
        from ray.train import FailureConfig, ScalingConfig, TrainingFailedError
        from ray.train import RunConfig as RayRunConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        resource = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
        available = int(ray.cluster_resources().get(resource, 0))
        num_workers = processes or (available if resource == "GPU" else 1)
        if num_workers > available:
            raise UserError(f"--processes {num_workers}: the cluster {address} has {available} {resource}s")
        out.parent.mkdir(parents=True, exist_ok=True)
        storage = Path(tempfile.mkdtemp(prefix=f".{out.name}.ray-", dir=out.parent))
        trainer = TorchTrainer(
            run_worker,
            train_loop_config={
                "config": config.resolve_paths(),
                "out": out,
                "storage": storage,
                "level": logging.getLogger("headwise").getEffectiveLevel(),
                "options": {"force": force, "resume": resume, **options},
            },
            scaling_config=ScalingConfig(
                num_workers=num_workers, use_gpu=resource == "GPU", resources_per_worker={resource: 1}
            ),
            torch_config=TorchConfig(backend="nccl" if resource == "GPU" else "gloo"),
            run_config=RayRunConfig(
                name="headwise",
                storage_path=str(storage),
                failure_config=FailureConfig(max_failures=MAX_FAILURES),
            ),
        )
        try:
            with print_appended(storage / OUTPUT):
                fit(trainer)
            message = storage / ERROR
            if message.is_file():
                raise UserError(message.read_text(encoding="utf-8"))
        except TrainingFailedError as error:
            last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            reason = shorten(to_one_line(last_line), MESSAGE_LENGTH, placeholder=" …")
            raise UserError(
                f"{out}: the run failed {MAX_FAILURES + 1} times on the cluster ({reason}); to continue it: "
                f"{resume_command(out)} --cluster {address}"
            ) from None
        finally:
            shutil.rmtree(storage, ignore_errors=True)
    return RunResult(out, run_dir.read_metrics(out))


def fit(trainer: Any) -> None:
    """Train with Ray Train, which replaces the handler of SIGINT and would end this process with exit code 0.

    Raises:
        KeyboardInterrupt: the user has stopped the run.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit()
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextmanager
def print_appended(path: Path) -> Iterator[None]:
    """Print what another process, maybe on another machine, appends to a file, to stderr, and end its last line."""
    ended = threading.Event()

    def copy() -> None:
        position, is_last, last_byte = 0, False, b"\n"
        while not is_last:
            is_last = ended.wait(OUTPUT_INTERVAL)
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                last_byte = data[-1:] or last_byte
                sys.stderr.write(data.decode("utf-8", "replace"))
                sys.stderr.flush()
        if last_byte != b"\n":  # the process died while its progress bar was shown
            sys.stderr.write("\n")

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run_worker(settings: dict[str, Any]) -> None:
    """Run one process of the training. Ray Train has set the variables of torchrun."""
    if not state().is_main_process:
        train_in_worker(settings)
        return
    # Ray would mix the output of all processes with its own messages.
    with (settings["storage"] / OUTPUT).open("a", buffering=1, encoding="utf-8") as file, redirect_stderr(file):
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=file, force=True)
        logging.getLogger("headwise").setLevel(settings["level"])
        train_in_worker(settings)


def train_in_worker(settings: dict[str, Any]) -> None:
    """Train the run, or continue it if a process has died."""
    out, options = settings["out"], settings["options"]
    started = settings["storage"] / STARTED
    is_restart = main_process_only(started.exists, share=True)
    main_process_only(started.touch)
    if is_restart and (out / run_dir.METRICS).exists():
        return  # the last process died after the end of the run
    if is_restart:
        logger.warning("a process or node died; the run continues from its last checkpoint")
    if is_restart and (out / run_dir.CONFIG).is_file():
        options = options | {"force": False, "resume": True}
    try:
        train(settings["config"], out, **options)
    except UserError as error:
        if state().is_main_process:
            (settings["storage"] / ERROR).write_text(str(error), encoding="utf-8")
