"""Checks of a study's methods before its first run: a misspelt method would otherwise fail with every seed."""

import copy
import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from headwise.errors import UserError
from headwise.scheme_names import PositionExtension
from headwise.studies.methods import SCHEMES, SEPARATOR
from headwise.studies.plan import Run
from headwise.training.core.config import RunConfig, option_name, parse_scheme_options, parse_value, to_plain_type
from headwise.training.core.model_names import is_directory_name
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.config import check_from_scratch_options as check_recommender_options
from headwise.training.text.config import LongText, TextConfig, check_from_scratch_options, check_label_options


def check_methods(runs: Iterable[Run], option: str = "--methods ") -> None:
    """Check the configurations of all methods of a comparison. Runs that differ only in their seed are checked once.

    Args:
        runs: the runs.
        option: the option that names methods, for messages; empty if the user does not name them.

    Raises:
        UserError: a method names a model, a scheme or a guide that does not exist.
    """
    for run in {(run.task, run.method): run for run in runs}.values():
        try:
            check_config(run.config)
        except UserError as error:
            raise UserError(f"{option}{run.method.partition(SEPARATOR)[0]}: {error}") from None


def check_encoder(model: str) -> None:
    """Check a value of `--model` that has to be a Hugging Face encoder.

    Raises:
        UserError: it is a scheme, there is no such model, or its configuration cannot be loaded.
    """
    if model in SCHEMES:
        raise UserError(f"--model {model}: expected a Hugging Face encoder, by name or directory, not a scheme")
    try:
        load_model_config(model)
    except UserError:
        if Path(model).exists():
            raise
        raise UserError(f"--model {model}: no such directory, and no such model on the hub or in its cache") from None


def check_candidates(runs: Iterable[Run]) -> None:
    """Check that the models of a sweep's candidates can read their texts. Each candidate is checked once.

    Raises:
        UserError: a model cannot.
    """
    for run in {run.method: run for run in runs}.values():
        try:
            check_max_length(run.config)
            check_long_texts(run.config)
        except UserError as error:
            raise UserError(f"{run.method}: {error}") from None


def check_config(config: RunConfig) -> None:
    """Check that the model, the scheme and the guides of a configuration exist, and that the model reads its texts.

    Raises:
        UserError: one of them does not.
    """
    check_values(config)
    if isinstance(config, RecommendationConfig):
        check_recommender(config)
    if not isinstance(config, TextConfig):
        return
    num_layers = None if config.model in SCHEMES else load_num_layers(config.model)
    if config.guides and config.model in SCHEMES:
        raise UserError(f"guides require a Hugging Face model; {config.model} is trained from scratch")
    for guide in config.guides:
        check_guide(guide, num_layers)
    if config.retrofit is not None and config.model in SCHEMES:
        raise UserError(f"retrofit requires a Hugging Face model; {config.model} already has a scheme")
    if config.model in SCHEMES:
        check_from_scratch_options(config)
        check_scheme_options(config)
    if config.retrofit is not None:
        from headwise.training.core.attention_notes import check_retrofit  # imports transformers

        check_retrofit(config.retrofit, config.model, load_model_config(config.model))
    check_vectors(config)
    check_label_options(config, find_label_type(config))
    check_max_length(config)
    check_long_texts(config)
    check_lora(config)
    if config.gradient_checkpointing and (loaded := load_encoder(config)):
        from headwise.training.core.pretrained import check_gradient_checkpointing

        check_gradient_checkpointing(loaded)


def check_recommender(config: RecommendationConfig) -> None:
    """Check the title encoder of a run on a click log.

    Raises:
        UserError: there is no such model, or its options do not apply to it.
    """
    if config.model in SCHEMES:
        check_scheme_options(config)
        check_vectors(config)
    else:
        load_model_config(config.model)
        check_recommender_options(config)


def check_vectors(config: TextConfig | RecommendationConfig) -> None:
    """Check that the file of `--vectors` exists.

    Raises:
        UserError: it does not.
    """
    if config.vectors is not None and not config.vectors.is_file():
        raise UserError(f"--vectors {config.vectors}: no such file")


def find_label_type(config: TextConfig) -> str:
    """Return the type of the labels, as far as the options say what it is."""
    if config.task is not None:
        from headwise.tasks import get_task

        return get_task(config.task).label_type
    return "ranking" if config.queries or config.documents or config.relevance else config.label_type


def check_scheme_options(config: TextConfig | RecommendationConfig) -> None:
    """Check `--scheme-options` of a model that is trained from scratch.

    Raises:
        UserError: the scheme has no such option, or does not accept its value.
    """
    if config.scheme_options:
        from headwise.models.configuration import add_default_options, check_scheme  # imports torch

        options = add_default_options(config.model, parse_scheme_options(config.scheme_options))
        check_scheme(config.model, options, heads=config.heads, head_dim=config.head_dim)


def check_lora(config: TextConfig) -> None:
    """Check that `--lora` applies to the model, and that the model has the layers to adapt.

    Raises:
        UserError: it does not.
    """
    if not (config.lora or config.lora_target_modules):
        return
    from headwise.training.text.lora import check_lora_options, check_target_modules  # imports transformers

    check_lora_options(config)
    if encoder := load_encoder(config):
        check_target_modules(encoder, config.lora_target_modules)


def load_encoder(config: TextConfig) -> Any:
    """Return the Hugging Face model of a configuration without its weights; None if there is none or it is damaged."""
    loaded = None if config.model in SCHEMES else load_without_weights(config.model)
    return loaded and loaded[0]


def check_max_length(config: RunConfig) -> None:
    """Check that a Hugging Face model has positions for `--max-length` tokens, or can get them.

    Raises:
        UserError: it has fewer, or they cannot be extended.
    """
    if isinstance(config, TextConfig) and config.model not in SCHEMES and config.max_length is not None:
        check_positions(config.model, config.max_length, config.long_text, config.extend_positions)


def check_long_texts(config: RunConfig) -> None:
    """Check that `--long-text` applies to the texts, as far as the options say what they are.

    Raises:
        UserError: it does not.
    """
    if not isinstance(config, TextConfig) or config.long_text in ("truncate", "extend"):
        return
    from headwise.tasks import get_task
    from headwise.training.text.long_text import check_long_text  # imports transformers

    task = None if config.task is None else get_task(config.task)
    check_long_text(
        config.long_text,
        label_type=find_label_type(config),
        has_pair=config.pair is not None if task is None else task.pair,
        hierarchy=config.hierarchy,
    )


@cache  # the candidates of a sweep often share these options
def check_positions(
    model: str, max_length: int, long_text: LongText, extend_positions: PositionExtension | None
) -> None:
    """Check that a run with these options could read its texts, as the run does, but without the model's weights.

    Raises:
        UserError: it could not.
    """
    loaded = load_without_weights(model)
    if loaded is None:
        return
    from headwise.training.core.extension import extend_model, is_extensible  # imports transformers
    from headwise.training.core.pretrained import max_input_length

    if long_text == "extend":
        extend_model(*copy.deepcopy(loaded), max_length, extend_positions, option="--long-text extend")
        return
    limit = max_input_length(*loaded)
    if max_length <= limit:
        return
    reason = f"--max-length {max_length}: {model} accepts at most {limit} tokens"
    if not is_extensible(loaded[0]):
        raise UserError(f"{reason}, and its positions cannot be extended")
    raise UserError(
        f"{reason} with --long-text {long_text}; compare with headwise compare --methods "
        f'{long_text}="--max-length {limit} --long-text {long_text}" '
        f'extend="--max-length {max_length} --long-text extend"'
    )


@cache
def load_without_weights(model: str) -> tuple[Any, Any] | None:
    """Return a Hugging Face model without weights and its tokenizer; None if the runs have to find out what is wrong.

    Raises:
        UserError: there is no such model.
    """
    config = load_model_config(model)
    import torch
    from transformers import AutoModel, AutoTokenizer

    from headwise.training.core.pretrained import is_available, load_pretrained

    options = {} if Path(model).exists() or is_available(model) else {"local_files_only": True}
    try:
        tokenizer = load_pretrained(AutoTokenizer, model, **options)
        with torch.device("meta"):
            return AutoModel.from_config(copy.deepcopy(config), trust_remote_code=False), tokenizer
    except Exception:  # libraries raise many types for damaged files
        return None


def check_values(config: RunConfig) -> None:
    """Check that every option with a list of allowed values has one of them.

    Raises:
        UserError: an option has another value.
    """
    types = get_type_hints(type(config))
    for name, value in vars(config).items():
        try:
            parse_value(types[name], to_plain_type(value))
        except ValueError as error:
            raise UserError(f"{option_name(name)} {error}") from None


def check_guide(text: str, num_layers: int | None) -> None:
    """Check one value of `--guides`.

    Raises:
        UserError: the guide is unknown, or its weight or layers are invalid.
    """
    from headwise.training.text.guides import parse_guide  # imports transformers

    parse_guide(text, num_layers)


def load_num_layers(model: str) -> int | None:
    """Return the number of layers of a Hugging Face model; None if its configuration does not state it.

    Raises:
        UserError: there is no such model.
    """
    return load_config_value(model, "num_hidden_layers")


def load_config_value(model: str, name: str) -> int | None:
    """Return a number in the configuration of a Hugging Face model; None if it is not there.

    Raises:
        UserError: there is no such model.
    """
    value = getattr(load_model_config(model), name, None)
    return value if isinstance(value, int) else None


@cache  # the methods of a study often share a model
def load_model_config(model: str) -> Any:
    """Return the configuration of a Hugging Face model.

    Raises:
        UserError: there is no such model.
    """
    if Path(model).exists():
        return load_config(model, {})
    nearest = difflib.get_close_matches(model, SCHEMES, n=1)
    question = f"; did you mean {nearest[0]}?" if nearest else ""
    expected = f"expected {', '.join(SCHEMES)}, or a Hugging Face model{question}"
    if is_directory_name(model):
        raise UserError(f"{model}: no such directory; {expected}")
    from headwise.training.core.pretrained import is_available  # imports transformers

    available = is_available(model)
    try:
        return load_config(model, {} if available else {"local_files_only": True})
    except UserError:
        reason = "" if available else " (no such directory, not in the cache, and the hub cannot be reached)"
        raise UserError(f"unknown method {model!r}{reason}; {expected}") from None


def load_config(model: str, options: Mapping[str, Any]) -> Any:
    """Return a model's configuration.

    Raises:
        UserError: the configuration cannot be loaded.
    """
    from transformers import AutoConfig

    from headwise.training.core.pretrained import load_pretrained, loading_errors

    with loading_errors(model):
        return load_pretrained(AutoConfig, model, **options)
