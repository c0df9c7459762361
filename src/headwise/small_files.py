"""Guarded readers of small JSON and YAML files: run.yaml, metrics.json, study.yaml, a model's config.json.

Such files may come from elsewhere. Their size, nesting and numbers are limited, so that a file cannot exhaust memory or
the stack, and all defects are one-line errors.
"""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from headwise.errors import UserError, first_line

#: Limits of a file. Parsed JSON can take 30 times the memory of its text.
MAX_JSON_BYTES, MAX_YAML_BYTES = 16 * 2**20, 2**20
#: Levels of nested lists and mappings.
MAX_DEPTH = 100
#: Digits of an integer. Those of 64 bits have up to 19, the length of tokenizers without a limit (10³⁰) has 31.
MAX_DIGITS = 100

_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        max_bytes: The largest size that is accepted.

    Raises:
        UserError: The file cannot be read, is not JSON, or exceeds a limit.
    """
    return parse_json(read_text(path, max_bytes), path)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        UserError: The file cannot be read, is not YAML, or exceeds a limit.
    """
    return parse_yaml(read_text(path, MAX_YAML_BYTES), path)


def read_text(path: Path, max_bytes: int) -> str:
    """Read a text file in UTF-8.

    Raises:
        UserError: It does not exist, is a pipe or device, is too large, or is not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{path}: not a regular file")
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if len(content) > max_bytes:
        raise UserError(f"{path}: larger than {max_bytes:,} bytes, so it is not read")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text") from None


def parse_json(text: str, name: Path | str) -> Any:
    """Parse JSON.

    Args:
        text: The JSON text.
        name: The name of its source, for messages.

    Raises:
        UserError: It is not JSON, or exceeds a limit.

    Example:
        >>> parse_json('{"a": [1, 2]}', "example")
        {'a': [1, 2]}
    """

    def parse_int(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise UserError(f"{name}: an integer of {len(digits):,} digits; at most {MAX_DIGITS} are allowed")
        return int(digits)

    try:
        value = json.loads(text, parse_int=parse_int)
    except json.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise UserError(too_deep(name)) from None
    check_depth(value, name)
    return value


def parse_yaml(text: str, name: Path | str) -> Any:
    """Parse YAML. Aliases are refused, because a few lines of them can stand for billions of values.

    Args:
        text: The YAML text.
        name: The name of its source, for messages.

    Raises:
        UserError: It is not YAML, or exceeds a limit.

    Example:
        >>> parse_yaml("epochs: 3", "example")
        {'epochs': 3}
    """
    try:
        check_events(text, name)
        loader = _YamlLoader(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{name}{place}: not valid YAML") from None
    except UserError:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError) as error:  # of numbers, dates and !!tags
        reason = first_line(error)
        raise UserError(f"{name}: not valid YAML ({reason:.200})") from None
    for item in iterate_values(value):
        if isinstance(item, int) and abs(item) >= 10**MAX_DIGITS:
            raise UserError(f"{name}: an integer of more than {MAX_DIGITS} digits")
    return value


def check_events(text: str, name: Path | str) -> None:
    """Check the nesting of YAML before it is built.

    Raises:
        UserError: It is nested too deeply, or contains an alias.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_YamlLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise UserError(f"{name}, line {event.start_mark.line + 1}: aliases (*{event.anchor:.40}) are not allowed")
        if depth > MAX_DEPTH:
            raise UserError(too_deep(name))


def check_depth(value: Any, name: Path | str) -> None:
    """Check the nesting of a parsed value.

    Raises:
        UserError: It is nested too deeply.
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in children(parent) if isinstance(item, list | dict)]
        if not level:
            return
    raise UserError(too_deep(name))


def too_deep(name: Path | str) -> str:
    return f"{name}: nested more than {MAX_DEPTH} levels deep"


def children(value: Any) -> list[Any]:
    """Return the items of a list or the values of a mapping."""
    return value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []


def iterate_values(value: Any) -> Iterator[Any]:
    """Iterate over a value and all values in it, including keys."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += [*children(item), *(item if isinstance(item, dict) else ())]
