"""Upload of a finished run to the Hugging Face Hub: `--push-to-hub`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

from headwise.errors import UserError, first_line
from headwise.training.core import run_dir
from headwise.training.core.config import RunConfig

#: Options with paths, of which the uploaded `run.yaml` has only the file names.
PATH_OPTIONS = ("data", "train", "dev", "test", "queries", "documents", "relevance", "vectors", "model")


def create_repository(repository: str, *, private: bool) -> str:
    """Create a repository for a model, if it does not exist, so that errors appear before training.

    Args:
        repository: OWNER/NAME, or NAME for one of the user.
        private: whether a new repository is private.

    Returns:
        Its full name.

    Raises:
        UserError: the hub cannot be reached, or the user is not logged in or may not write there.
    """
    with hub_errors(repository):
        return str(hub_api().create_repo(repository, private=private, exist_ok=True).repo_id)


def upload_run(out_dir: Path, repository: str, config: RunConfig) -> str:
    """Upload the model, tokenizer, card, metrics and configuration of a finished run.

    Checkpoints and predictions are not uploaded. Paths in `run.yaml` are reduced to file names.

    Returns:
        The address of the commit.

    Raises:
        UserError: the upload failed.
    """
    from huggingface_hub import CommitOperationAdd

    names = sorted(
        path.relative_to(out_dir).as_posix()
        for path in out_dir.rglob("*")
        if path.is_file() and not is_private(path.relative_to(out_dir))
    )
    operations: list[Any] = [CommitOperationAdd(name, str(out_dir / name)) for name in names]
    operations.append(CommitOperationAdd(run_dir.CONFIG, without_paths(config).to_yaml().encode()))
    command = f"{run_dir.resume_command(out_dir)} --push-to-hub {quote(repository)}"
    with hub_errors(repository, f"; the finished run is in {out_dir}; to upload it: {command}"):
        commit = hub_api().create_commit(repository, operations, commit_message="Upload a model trained with headwise")
    return str(commit.commit_url)


def is_private(path: Path) -> bool:
    """Return whether a file of a run directory is not uploaded."""
    is_hidden = any(part.startswith(".") for part in path.parts)
    return is_hidden or path.parts[0] in (run_dir.CHECKPOINTS, run_dir.CONFIG, run_dir.PREDICTIONS)


def without_paths(config: RunConfig) -> RunConfig:
    """Return a configuration whose paths are reduced to file names."""
    names = {field.name for field in fields(config)} & set(PATH_OPTIONS)
    return replace(config, **{name: file_names(getattr(config, name)) for name in names})


def file_names(value: Any) -> Any:
    """Return the last part of each path; names on the hub and of schemes are kept.

    >>> file_names(("/home/me/reviews.csv", "hub:imdb")), file_names("google-bert/bert-base-uncased")
    (('reviews.csv', 'hub:imdb'), 'google-bert/bert-base-uncased')
    """
    if isinstance(value, tuple):
        return tuple(map(file_names, value))
    if isinstance(value, Path):
        return Path(value.name)
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def hub_api() -> Any:
    from huggingface_hub import HfApi

    return HfApi()


@contextmanager
def hub_errors(repository: str, consequence: str = "") -> Iterator[None]:
    """Turn errors of the hub into UserErrors."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except Exception as error:  # the client raises errors of several libraries
        reason = first_line(error).rstrip(".")
        hint = "log in with hf auth login" if isinstance(error, HfHubHTTPError) else "check the name and the network"
        raise UserError(f"--push-to-hub {repository}: {reason}; {hint}{consequence}") from None
