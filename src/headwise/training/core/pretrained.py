"""Loading of Hugging Face models: the one place that calls `from_pretrained`, availability, limits and errors.

Model directories may contain Python code. It is never run unless the user asks for it with --trust-remote-code.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.utils.hub import cached_file

from headwise.errors import UserError, first_line
from headwise.integrations import unwrap_model
from headwise.integrations.extension import has_unlimited_positions, padding_offset
from headwise.models.configuration import SCHEMES
from headwise.native_errors import buffer_stderr, native_errors
from headwise.tasks.hub import is_hub_reachable
from headwise.training.core.callbacks import quiet_libraries
from headwise.training.core.model_dir import check_model_dir, check_size
from headwise.training.core.model_names import is_directory_name

logger = logging.getLogger(__name__)

#: Files with weights, or with the list of files that have them.
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
BIN_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")

#: The environment variable that allows the code of model directories, inherited by worker processes.
TRUST_VARIABLE = "HEADWISE_TRUST_REMOTE_CODE"


@contextmanager
def remote_code(trusted: bool) -> Iterator[None]:
    """Allow the Python code of model directories in this context, if it is trusted."""
    previous = os.environ.get(TRUST_VARIABLE)
    if trusted:
        os.environ[TRUST_VARIABLE] = "1"
    try:
        yield
    finally:
        if trusted and previous is None:
            del os.environ[TRUST_VARIABLE]


#: The message of transformers' auto classes for models that they do not have.
UNKNOWN_TO_AUTO_CLASS = re.compile(r"class \S*?(?P<config>\w+)'> for this kind of AutoModel: (?P<auto_class>\w+)")


def load_pretrained(loader: Any, path: Path | str, *, complete: bool = False, **options: Any) -> Any:
    """Load a configuration, tokenizer or model of a directory or the hub.

    Args:
        loader: A class with `from_pretrained`, such as `AutoTokenizer`, or `headwise.from_pretrained` with an
            `auto_class`.
        path: The directory or the name on the hub.
        complete: Whether all weights of a model must be in its files, as in a run directory.
        options: Options of `from_pretrained`.

    Raises:
        UserError: There is no such directory; it needs Python code of its own, which is not trusted; its configuration
            does not fit its weights; weights are missing; settings of a tokenizer have wrong types; or memory is
            exhausted.
    """
    trusted = os.environ.get(TRUST_VARIABLE) == "1"
    load = getattr(loader, "from_pretrained", loader)
    if complete:
        options["output_loading_info"] = True
    is_tokenizer = "Tokenizer" in getattr(loader, "__name__", "")  # Rust prints a stack trace before it panics
    try:
        with native_errors(path, "cannot be loaded"), buffer_stderr() if is_tokenizer else nullcontext():
            if not Path(path).exists() and is_directory_name(str(path)):
                raise UserError(f"{path}: no such directory; expected a Hugging Face model")
            if Path(path).is_dir():
                check_before_loading(loader, Path(path), options.get("config"), trusted=trusted)
            loaded = load(path, trust_remote_code=trusted, **options)
        if complete:
            loaded, report = loaded
            check_complete(report, path)
        return loaded
    except SafetensorError as error:
        raise UserError(f"{path}: the weights cannot be read ({error})") from None
    except TypeError as error:
        if not is_tokenizer:
            raise
        raise UserError(
            f"{path}: the tokenizer cannot be loaded (TypeError: {error}); check tokenizer_config.json"
        ) from None
    except ValueError as error:
        if unknown := UNKNOWN_TO_AUTO_CLASS.search(str(error)):
            raise UserError(
                f"{path}: transformers has no {unknown['auto_class']} for a model with {unknown['config']}; choose "
                "another model, such as a BERT, RoBERTa or ModernBERT"
            ) from None
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{path}: the model needs Python code from its directory, which was not run; if you trust its author, add "
            "--trust-remote-code"
        ) from None


def load_weights(loader: Any, model: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load a pretrained model from safetensors, or from `pytorch_model.bin` if it has no others.

    A .bin file is a pickle. torch reads it with `weights_only=True`, which creates tensors and refuses everything else.

    Args:
        loader: A class with `from_pretrained`, such as `AutoModel`.
        model: The directory or the name on the hub.
        options: Options of `from_pretrained`.

    Returns:
        The model and transformers' report on its weights.

    Raises:
        UserError: As `load_pretrained`, weights of layers are missing, or a .bin file contains other objects than
            tensors.
    """
    loaded, report = load_any_weights(loader, model, output_loading_info=True, **options)
    check_layers(loaded, report["missing_keys"], model)
    return loaded, report


def load_any_weights(loader: Any, model: str, **options: Any) -> Any:
    """Load a pretrained model as `load_weights`, with layers that are missing in its files."""
    if find_weights(model, SAFETENSORS, options) or not find_weights(model, BIN_FILES, options):
        return load_pretrained(loader, model, use_safetensors=True, **options)
    logger.warning(
        "%s has no safetensors file: its weights are read from %s with weights_only=True, which creates tensors only",
        model,
        BIN_FILES[0],
    )
    try:
        return load_pretrained(loader, model, use_safetensors=False, weights_only=True, **options)
    except UnpicklingError:  # torch advises to load the objects
        raise UserError(
            f"--model {model}: {BIN_FILES[0]} contains objects that are not tensors, and was not loaded; a model with "
            "safetensors is needed"
        ) from None


def find_weights(model: str, names: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Return whether a directory, a model on the hub or its cached copy has one of these files."""
    if Path(model).is_dir():
        return any((Path(model) / name).is_file() for name in names)
    missing_is_none = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    is_local = bool(options.get("local_files_only"))
    return any(cached_file(model, name, local_files_only=is_local, **missing_is_none) for name in names)


def check_before_loading(loader: Any, directory: Path, config: Any, *, trusted: bool) -> None:
    """Check that the files of a model directory can be loaded safely.

    Raises:
        UserError: A file exceeds a limit, or the configuration describes a larger model than the weights.
    """
    loader_class = getattr(loader, "keywords", {}).get("auto_class", loader)
    is_tokenizer = "Tokenizer" in getattr(loader_class, "__name__", "")
    check_model_dir(directory, with_tokenizer=is_tokenizer)
    if is_tokenizer or loader_class is AutoConfig or trusted:
        return
    config = config or AutoConfig.from_pretrained(directory, trust_remote_code=False)
    check_size(loader_class, config, directory)


def check_complete(report: dict[str, Any], path: Path | str) -> None:
    """Check transformers' report that the files of a model have all of its weights.

    Raises:
        UserError: Weights are missing.
    """
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))  # unused in encoders
    if missing:
        raise UserError(
            f"{path}: {len(missing)} weights of the model are missing, such as {missing[0]}; its files are damaged or "
            "belong to different models"
        )


def check_layers(model: Any, missing: Iterable[str], path: str) -> None:
    """Check that all layers of a pretrained model are in its files. New heads are no layers.

    Raises:
        UserError: Layers are missing, such as the decoder of a `T5EncoderModel`.
    """
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    names = sorted(name for name in missing if re.match(rf"{prefix}(.*\.)?\d+\.", name))
    if names:
        raise UserError(
            f"{path}: {len(names)} weights of the layers of {type(model).__name__} are missing, such as "
            f"{names[0]}; its files are damaged or belong to another kind of model, such as an encoder without decoder"
        )


def is_scheme(model: str) -> bool:
    """Return whether `--model` names a scheme, so that the model is trained from scratch."""
    return model in SCHEMES


def is_available(model: str) -> bool:
    """Return whether a model is a local path or the hub can be reached to look for it."""
    return Path(model).exists() or is_hub_reachable(model, "model")


def unavailable_error(model: str, error: Exception, *, available: bool) -> UserError:
    """Return the error for a model that cannot be loaded."""
    nearest = [] if Path(model).exists() else get_close_matches(model, SCHEMES, n=1)
    question = f"; did you mean {nearest[0]}?" if nearest else ""
    if available:
        return UserError(f"--model {model}: {first_line(error)}{question}")
    return UserError(
        f"--model {model}: no such directory, and the Hugging Face hub cannot be reached; "
        f"name a directory with config.json and model.safetensors, or one of {', '.join(SCHEMES)}{question}"
    )


def max_input_length(model: Any, tokenizer: Any) -> int:
    """Return the largest number of tokens that a model accepts.

    Some models, such as RoBERTa, reserve their first positions for padding.
    """
    limits = [tokenizer.model_max_length]
    if not has_unlimited_positions(model):
        limits.append(getattr(model.config, "max_position_embeddings", None))
    limits.append(max_absolute_positions(model))
    try:
        limit = int(min(limit for limit in limits if limit))
    except (TypeError, ValueError, OverflowError):
        limit = 0
    if limit < 1:
        raise UserError(f"{tokenizer.name_or_path}: model_max_length is {limits[0]!r:.40}, expected a number")
    return limit


def check_gradient_checkpointing(model: Any) -> None:
    """Check that a model supports `--gradient-checkpointing`.

    Raises:
        UserError: it does not, as ALBERT.
    """
    inner = unwrap_model(model)
    if not inner.supports_gradient_checkpointing:
        raise UserError(f"--gradient-checkpointing: {type(inner).__name__} does not support it; leave it out")


def max_absolute_positions(model: Any) -> int | None:
    """Return the number of tokens that a model's tables of absolute positions have rows for; None without a table."""
    tables = (
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding)
    )
    return min((table.num_embeddings - padding_offset(table) for table in tables), default=None)


@contextmanager
def loading_errors(path: Path | str, message: str = "the model cannot be loaded") -> Iterator[None]:
    """Turn any exception of a library that loads files into a UserError.

    Args:
        path: the file or directory, for the message.
        message: the problem.
    """
    try:
        with quiet_libraries():
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: {message} ({first_line(error)})") from None


@contextmanager
def running_errors(model: Any) -> Iterator[None]:
    """Turn any exception of a loaded model or its tokenizer into a UserError.

    Files that do not belong together may load and fail later, such as a tokenizer with more tokens than the model.

    Args:
        model: the model, whose configuration names its directory.
    """
    name = getattr(model, "name_or_path", "") or type(model).__name__
    with loading_errors(name, "the model cannot be run; its files are damaged or do not belong together"):
        yield


def check_finite(scores: Tensor, model: Any) -> None:
    """Check the scores of a model.

    Raises:
        UserError: a score is NaN or infinite.
    """
    if not torch.isfinite(scores).all():
        name = getattr(model, "name_or_path", "") or type(model).__name__
        raise UserError(
            f"{name}: the model's scores are NaN or infinite: its weights are damaged, or its training has diverged"
        )
