"""Engines run the parts of a job: in this process, in local processes, or in the processes of a distributed program."""

import logging
import multiprocessing
import os
import pickle
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from threading import Thread
from typing import Any

import torch
from accelerate.utils import gather_object

from headwise.csv_cells import is_safe_csv, safe_csv
from headwise.errors import UserError, to_one_line
from headwise.training.core.distributed import state
from headwise.training.jobs.job import MAX_ATTEMPTS, JobOptions, PartFailedError, PartRunner, Progress, Result

logger = logging.getLogger(__name__)

#: Yields the number and the result of each part, as they finish.
Engine = Callable[[PartRunner, Mapping[int, Any], Progress], Iterator[tuple[int, Result]]]

#: Of a worker process: the pickled runner, the runner, and the model of its task.
_loaded: tuple[bytes, PartRunner, Any] | None = None


def choose_engine(options: JobOptions, num_parts: int) -> Engine:
    """Return the engine for a number of parts.

    Raises:
        UserError: a distributed program is combined with local processes or a cluster.
    """
    if state().num_processes > 1:
        if options.cluster is not None or options.processes is not None:
            raise UserError("--processes and --cluster cannot be used in a program that torchrun or accelerate started")
        return run_in_ranks
    if options.cluster is not None:
        from headwise.training.jobs.ray_engine import run_on_cluster

        return partial(run_on_cluster, address=options.cluster)
    processes = options.processes or max(torch.accelerator.device_count(), 1)
    processes = min(processes, num_parts)
    return partial(run_in_processes, processes=processes) if processes > 1 else run_here


def run_here(runner: PartRunner, parts: Mapping[int, Any], progress: Progress) -> Iterator[tuple[int, Result]]:
    """Run all parts in this process."""
    if not parts:
        return
    model = runner.task.load()
    for number, part in parts.items():
        for attempt in range(1, MAX_ATTEMPTS + 1):
            done = [0]

            def count(num_rows: int, done: list[int] = done) -> None:
                done[0] += num_rows
                progress(num_rows)

            try:
                result = runner(model, number, part, count)
            except (UserError, MemoryError):
                raise
            except Exception as error:
                report_failure(part, error, attempt)
                progress(-done[0])
            else:
                yield number, result
                break


def report_failure(part: Any, error: BaseException, attempt: int) -> None:
    """Log that a part failed, or raise the error if it failed too often."""
    reason = to_one_line(f"{type(error).__name__}: {error}")
    if attempt >= MAX_ATTEMPTS:
        raise error
    logger.warning("%s: failed (%s); attempt %s of %s follows", part, reason, attempt + 1, MAX_ATTEMPTS)


def run_in_ranks(runner: PartRunner, parts: Mapping[int, Any], progress: Progress) -> Iterator[tuple[int, Result]]:
    """Run parts in the processes of a distributed program, each in one process, and yield all results in each process.

    Raises:
        UserError: a process raised it.
    """
    numbers = list(parts)
    own = numbers[state().process_index :: state().num_processes]
    results: list[tuple[int, Result]] = []
    message = ""
    try:
        results += run_here(runner, {number: parts[number] for number in own}, progress)
    except UserError as error:
        message = str(error)
    messages = [text for text in gather_object([message]) if text]
    if messages:
        raise UserError(messages[0])
    yield from gather_object(results)


def run_in_processes(
    runner: PartRunner, parts: Mapping[int, Any], progress: Progress, *, processes: int
) -> Iterator[tuple[int, Result]]:
    """Run parts in local processes, each with its own GPU if there are any.

    If a process dies, all processes are started again. The parts that have not finished are repeated one by one, so
    that the part that ends its process is known.

    Raises:
        UserError: a part is invalid, or its process died repeatedly.
    """
    attempts: Counter[int] = Counter()
    suspects: set[int] = set()
    pickled_runner = pickle.dumps(runner)
    waiting = deque(parts)
    while waiting:
        running: dict[Future[Result], int] = {}
        with worker_pool(processes) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < processes:
                        number = waiting[0]
                        if running and suspects & {number, *running.values()}:
                            break
                        running[pool.submit(run_in_worker, pickled_runner, number, parts[number])] = number
                        waiting.popleft()  # a broken pool submits nothing
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future_result(future, parts[running[future]], attempts, running[future])
                        number = running.pop(future)
                        if result is None:
                            waiting.appendleft(number)
                            continue
                        progress(parts[number].num_rows)
                        yield number, result
            except BrokenProcessPool:
                unfinished = sorted(running.values())
                suspects |= set(unfinished)
                if len(unfinished) == 1:
                    attempts.update(unfinished)
                if unfinished and attempts[unfinished[0]] >= MAX_ATTEMPTS:
                    raise PartFailedError(
                        f"{parts[unfinished[0]]}: its process died {MAX_ATTEMPTS} times, perhaps for lack of memory; "
                        "use fewer --processes or a smaller --part-rows"
                    ) from None
                logger.warning("a process died; its part is repeated")
                waiting.extendleft(reversed(unfinished))


def future_result(future: "Future[Result]", part: Any, attempts: "Counter[int]", number: int) -> Result | None:
    """Return the result of a part, or None if it must be repeated."""
    try:
        return future.result()
    except (UserError, MemoryError, BrokenProcessPool):
        raise
    except Exception as error:
        attempts[number] += 1
        report_failure(part, error, attempts[number])
        return None


class worker_pool:  # noqa: N801
    """A context with an executor of worker processes, which are terminated at the end."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        indices = context.SimpleQueue()
        for index in range(processes):
            indices.put(index)
        self.others = set(multiprocessing.active_children())
        self.pool = ProcessPoolExecutor(
            processes,
            mp_context=context,
            initializer=start_worker,
            initargs=(indices, processes, is_safe_csv()),
        )

    def __enter__(self) -> ProcessPoolExecutor:
        return self.pool

    def __exit__(self, *error: object) -> None:
        workers = set(multiprocessing.active_children()) - self.others
        self.pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def start_worker(indices: Any, processes: int, is_safe: bool) -> None:
    """Prepare a worker process: its GPU or its share of the cores, and its end when its parent ends."""
    Thread(target=exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its workers
    index = indices.get()
    num_gpus = torch.cuda.device_count()
    if num_gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(num_gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index % num_gpus]  # before CUDA is initialized
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max((os.cpu_count() or 1) // processes, 1))
    safe_csv(is_safe).__enter__()


def exit_with_parent() -> None:
    """Wait for the end of the parent process and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_in_worker(pickled_runner: bytes, number: int, part: Any) -> Result:
    """Run a part in a worker process, which loads the model once."""
    global _loaded
    if _loaded is None or _loaded[0] != pickled_runner:
        runner: PartRunner = pickle.loads(pickled_runner)
        _loaded = (pickled_runner, runner, runner.task.load())
    _, runner, model = _loaded
    return runner(model, number, part)
