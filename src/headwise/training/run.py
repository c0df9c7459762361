"""Train, evaluate and predict, for all types of tasks."""

from contextlib import ExitStack, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any

from headwise.errors import UserError
from headwise.locks import lock_output
from headwise.training.core import hub, run_dir
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.config import RunConfig, option_name
from headwise.training.core.distributed import main_process_only, state
from headwise.training.core.environment import deterministic_algorithms
from headwise.training.core.pipeline import Pipeline
from headwise.training.core.pretrained import remote_code
from headwise.training.core.run_dir import RunResult
from headwise.training.registry import get_task_type, load_config

__all__ = ["RunResult", "evaluate", "predict", "train"]


def train(
    config: RunConfig,
    out: Path,
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
        resume: continue an unfinished run from its last checkpoint.
        trust_remote_code: run the Python code of the model's directory, if it has some.
        push_to_hub: a repository, OWNER/NAME, on the Hugging Face Hub, to which the finished run is uploaded.
        hub_private_repo: make the repository private, if it is new.

    Raises:
        UserError: the configuration, the data or the directory is invalid, or another process uses the directory. An
            existing run is not changed.
    """
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        stack.enter_context(deterministic_algorithms(config.deterministic))
        stack.enter_context(remote_code(trust_remote_code))
        main_process_only(lambda: run_dir.check_out_dir(out, force=force, resume=resume))
        main_process_only(lambda: stack.enter_context(lock_output(out, is_directory=True)))
        main_process_only(lambda: run_dir.check_out_dir(out, force=force, resume=resume))  # now nobody else changes it
        if push_to_hub is not None:
            main_process_only(lambda: hub.create_repository(push_to_hub, private=hub_private_repo))
        pipeline = get_task_type(config.task).pipeline(config.resolve_paths())
        metrics = pipeline.run(out, resume=resume)
        url = None
        if push_to_hub is not None:
            url = main_process_only(lambda: hub.upload_run(out, push_to_hub, pipeline.config))
        return RunResult(out, metrics, url)


def evaluate(run: Path, data: Path | None = None, *, trust_remote_code: bool = False, **options: Any) -> dict[str, Any]:
    """Evaluate the model of a finished run on its own test split (dev if there is none) or on other data.

    Args:
        run: the directory of a finished run.
        data: other labelled data.
        trust_remote_code: run the Python code of the run's directory, if it has some.
        options: options of the pipeline; for texts the columns `text`, `pair` and `label` of the file.

    Returns:
        The data, the number of rows, the metrics, the standard error of the primary metric and the baselines.

    Raises:
        UserError: there is no such run, its data has changed since training, or the data does not fit the run.
    """
    pipeline = load_pipeline(run)
    with remote_code(trust_remote_code):
        return pipeline.evaluate(run, data, **check_options(options, pipeline.evaluate, run))


def predict(
    run: Path, data: Path, out: Path, *, force: bool = False, trust_remote_code: bool = False, **options: Any
) -> int:
    """Write the predictions of a finished run's model for the rows of a file, in their order.

    Args:
        run: the directory of a finished run.
        data: the input file.
        out: the output file. It is not written if an error occurs.
        force: replace an existing output file.
        trust_remote_code: run the Python code of the run's directory, if it has some.
        options: options of the pipeline; for texts the columns `text` and `pair` of the file.

    Returns:
        The number of rows without a prediction.

    Raises:
        UserError: there is no such run or file, a row is invalid, or the output file exists.
    """
    pipeline = load_pipeline(run)
    is_stream = str(out) == "-"
    with remote_code(trust_remote_code), nullcontext() if is_stream else lock_output(out, is_directory=False):
        if out.exists() and not force and not is_stream and not (data.exists() and out.samefile(data)):
            raise UserError(f"--out {out}: the file exists; --force replaces it")
        return pipeline.predict(run, data, out, **check_options(options, pipeline.predict, run))


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
