"""Pretrained models that read longer inputs than before, and the check of `--max-length`."""

from typing import Any

from headwise.errors import UserError
from headwise.integrations import unwrap_model
from headwise.integrations.extension import (
    choose_extension,
    extend_positions,
    has_unlimited_positions,
    max_positions,
)
from headwise.scheme_names import PositionExtension
from headwise.training.core.pretrained import max_input_length

#: What the log says about each method.
DESCRIPTIONS: dict[PositionExtension, str] = {
    "tile": "tiled",
    "interpolate": "interpolated",
    "repeat-last": "last row repeated",
    "yarn": "scaled by YaRN",
}


def extend_model(
    model: Any, tokenizer: Any, max_length: int, positions: PositionExtension | None, *, option: str
) -> str:
    """Make a model and its tokenizer accept inputs of `max_length` tokens, if they do not yet.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        max_length: the number of tokens.
        positions: how new positions are computed; by default as suits the model.
        option: the option that asked for it, for messages.

    Returns:
        A note for the log.

    Raises:
        UserError: the positions of the model cannot be extended, or not by this method.
    """
    limit = max_input_length(model, tokenizer)
    if max_length <= limit:
        return f"positions: {limit}, not extended"
    inner = unwrap_model(model)
    if positions is None and has_unlimited_positions(inner):
        tokenizer.model_max_length = max_length
        return f"positions: relative, without a limit; the tokenizer accepted {limit}"
    try:
        positions = choose_extension(inner, positions)
        previous = max_positions(inner)
        extend_positions(model, max(previous, max_length), positions=positions, tokenizer=tokenizer)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    if previous >= max_length:
        return f"positions: {previous}, not extended; the tokenizer accepted {limit}"
    return f"positions: {previous} -> {max_length}, {DESCRIPTIONS[positions]}"


def check_length(max_length: int | None, model: Any, tokenizer: Any, *, option: str) -> int:
    """Return the number of tokens that a model accepts, after a check of `--max-length`.

    Args:
        max_length: the value of `--max-length`.
        model: the model.
        tokenizer: its tokenizer.
        option: the option that gives the model more positions, for the message; `{positions}` in it is replaced by
            the default of the model.

    Raises:
        UserError: `--max-length` is larger.
    """
    limit = max_input_length(model, tokenizer)
    if max_length is not None and max_length > limit:
        hint = get_hint(model, option)
        raise UserError(f"--max-length {max_length}: this model accepts at most {limit} tokens{hint}")
    return limit


def is_extensible(model: Any) -> bool:
    """Whether `extend_model` gives a model more positions, or has to raise only the limit of its tokenizer."""
    inner = unwrap_model(model)
    try:
        return has_unlimited_positions(inner) or choose_extension(inner) is not None
    except ValueError:
        return False


def get_hint(model: Any, option: str) -> str:
    """Return what a message says after the number of tokens that a model accepts."""
    inner = unwrap_model(model)
    if has_unlimited_positions(inner):
        return "; its relative positions have no limit: set model_max_length in its tokenizer_config.json"
    try:
        positions = choose_extension(inner)
    except ValueError:
        return ", and its positions cannot be extended"
    return f"; add {option.format(positions=positions)} to give it more positions"
