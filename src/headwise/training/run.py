"""Train, evaluate and predict, for all types of tasks."""

from collections.abc import Sequence
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.training.core import hub, run_dir
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.config import RunConfig, option_name
from headwise.training.core.distributed import main_process_only, state
from headwise.training.core.environment import deterministic_algorithms, float32_products
from headwise.training.core.pipeline import Pipeline
from headwise.training.core.pretrained import remote_code
from headwise.training.core.run_dir import RunResult
from headwise.training.jobs import JobOptions
from headwise.training.registry import get_task_type, load_config

__all__ = ["RunResult", "evaluate", "predict", "train"]


def train(
    config: RunConfig,
    out: Path | str,
    *,
    force: bool = False,
    resume: bool = False,
    trust_remote_code: bool = False,
    push_to_hub: str | None = None,
    hub_private_repo: bool = False,
) -> RunResult:
    """Train and evaluate a model and save it to a run directory.

    Args:
        config: the configuration, which determines the result.
        out: the run directory.
        force: replace an existing run.
        resume: continue an unfinished run from its last checkpoint. A finished one is only uploaded.
        trust_remote_code: run the Python code of the model's directory, if it has some.
        push_to_hub: a repository, OWNER/NAME, on the Hugging Face Hub, to which the finished run is uploaded.
        hub_private_repo: make the repository private, if it is new.

    Raises:
        UserError: the configuration, the data or the directory is invalid, or another process uses the directory. An
            existing run is not changed.
    """
    out = Path(out)
    if resume and push_to_hub is not None and run_dir.is_finished(out):
        return upload_finished(out, push_to_hub, private=hub_private_repo)
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        stack.enter_context(deterministic_algorithms(config.deterministic))
        stack.enter_context(float32_products(config))
        stack.enter_context(remote_code(trust_remote_code))
        main_process_only(lambda: run_dir.check_out_dir(out, force=force, resume=resume))
        main_process_only(lambda: stack.enter_context(lock_output(out, is_directory=True)))
        main_process_only(lambda: run_dir.check_out_dir(out, force=force, resume=resume))  # now under the lock
        if push_to_hub is not None:
            main_process_only(lambda: hub.create_repository(push_to_hub, private=hub_private_repo))
        pipeline = get_task_type(config.task).pipeline(config.resolve_paths())
        metrics = pipeline.run(out, resume=resume)
        url = None
        if push_to_hub is not None:
            url = main_process_only(lambda: hub.upload_run(out, push_to_hub, pipeline.config))
        return RunResult(out, metrics, url)


def upload_finished(out: Path, repository: str, *, private: bool) -> RunResult:
    """Upload a finished run, such as one whose first upload failed."""

    def upload() -> str:
        with lock_output(out, is_directory=True):
            hub.create_repository(repository, private=private)
            return hub.upload_run(out, repository, load_config(out / run_dir.CONFIG))

    return RunResult(out, run_dir.read_metrics(out), main_process_only(upload, share=True))


def evaluate(
    run: Path | str,
    data: Path | str | None = None,
    *,
    out: Path | str | None = None,
    trust_remote_code: bool = False,
    processes: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    force: bool = False,
    part_rows: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate the model of a finished run on its own test split (dev if there is none) or on other data.

    Args:
        run: the directory of a finished run.
        data: other labelled data.
        out: the file that the caller writes the metrics to. The results of finished parts are stored next to it.
        trust_remote_code: run the Python code of the run's directory, if it has some.
        processes: the number of local processes; by default one per GPU, or this process alone.
        cluster: the address of a Ray cluster, or `auto`.
        resume: continue an unfinished evaluation with the same `out`, if there is one.
        force: discard an unfinished evaluation with the same `out`.
        part_rows: the number of rows that are evaluated, stored and repeated together.
        options: options of the pipeline; for texts the columns `text`, `pair` and `label` of the file.

    Returns:
        The data, the number of rows, the metrics, the standard error of the primary metric and the baselines.

    Raises:
        UserError: there is no such run, its data has changed since training, or the data does not fit the run.
    """
    run, data, out = Path(run), None if data is None else Path(data), None if out is None else Path(out)
    if resume and out is None:
        raise UserError("--resume requires --out, next to which the results of finished parts are stored")
    pipeline = load_pipeline(run)
    job = JobOptions(processes=processes, cluster=cluster, resume=resume, force=force, part_rows=part_rows)
    with remote_code(trust_remote_code):
        own_options = check_options(options, pipeline.evaluate, run)
        return pipeline.evaluate(run, data, out=out, options=job, **own_options)


def predict(
    run: Path | str,
    data: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    force: bool = False,
    trust_remote_code: bool = False,
    processes: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    part_rows: int | None = None,
    **options: Any,
) -> int:
    """Write the predictions of a finished run's model for the rows of files, in their order.

    Files are divided into parts. A part that fails is repeated; finished parts are stored next to the output until all
    are finished.

    Args:
        run: the directory of a finished run.
        data: the input file, or several files.
        out: the output file; for several input files a directory. It is not written if an error occurs.
        force: replace existing output and discard an unfinished job.
        trust_remote_code: run the Python code of the run's directory, if it has some.
        processes: the number of local processes; by default one per GPU, or this process alone.
        cluster: the address of a Ray cluster, or `auto`. Its nodes must share the file system.
        resume: continue an unfinished job with the same output, if there is one.
        part_rows: the number of rows that are predicted, stored and repeated together.
        options: options of the pipeline; for texts the columns `text` and `pair` of the file.

    Returns:
        The number of rows without a prediction.

    Raises:
        UserError: there is no such run or file, a row is invalid, or the output file exists.
    """
    run, out = Path(run), Path(out)
    pipeline = load_pipeline(run)
    job = JobOptions(processes=processes, cluster=cluster, resume=resume, force=force, part_rows=part_rows)
    paths = [Path(path) for path in ([data] if isinstance(data, Path | str) else data)]
    own_options = check_options(options, pipeline.predict, run)
    if str(out) == "-":
        with remote_code(trust_remote_code):
            return pipeline.predict(run, paths[0] if len(paths) == 1 else paths, out, options=job, **own_options)
    has_directory = len(paths) > 1 or out.is_dir()
    with remote_code(trust_remote_code), lock_output(out, is_directory=has_directory):
        is_input = any(path.exists() and out.exists() and out.samefile(path) for path in paths)
        if out.is_file() and not job.replaces(out) and not is_input:
            raise UserError(f"--out {out}: the file exists; --force replaces it")
        return pipeline.predict(run, paths[0] if len(paths) == 1 else paths, out, options=job, **own_options)


def load_pipeline(run: Path) -> type[Pipeline[Any, Any, Any]]:
    """Return the pipeline of a finished run.

    Raises:
        UserError: the directory contains no finished run.
    """
    run_dir.check_finished(run)
    state()  # in a distributed program, selects the process's GPU
    return get_task_type(load_config(run / run_dir.CONFIG).task).pipeline


def check_options(options: dict[str, Any], function: Any, run: Path) -> dict[str, Any]:
    """Return the options that are set, all of which the function must accept.

    Raises:
        UserError: an option belongs to another type of task.
    """
    values = {name: value for name, value in options.items() if value is not None}
    for name in values.keys() - signature(function).parameters.keys():
        raise UserError(f"{option_name(name)} does not apply to the run in {run}")
    return values
