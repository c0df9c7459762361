"""Checks of a model directory before anything in it is loaded.

A directory may come from elsewhere. Its configuration must not describe a model that is much larger than its weights,
and the regular expressions of its tokenizer must not take exponential time.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from headwise.errors import UserError
from headwise.small_files import iterate_values, read_json

#: A model may have this many times the elements of its weight files, and this many more: new heads and buffers.
MAX_SIZE_RATIO, MAX_NEW_ELEMENTS = 2, 50_000_000
#: The largest tokenizer.json that is read. That of Gemma, with 262,144 tokens, has 33 MB.
MAX_TOKENIZER_BYTES = 64 * 2**20
#: Layers and classes that a configuration without weights may have.
MAX_LAYERS, MAX_CLASSES = 10_000, 1_000_000

#: The largest id of a token. The largest vocabularies have fewer than a million tokens.
MAX_TOKEN_ID = 2**24

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
#: Small files that transformers reads.
SMALL_FILES = (
    CONFIG,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
)
#: Options that cannot be negative. Other numbers can be -1 for "none".
COUNTS = re.compile(r"(layers?|heads?)$")
#: Options that count layers, each of which has weights, and modules whose weights may be stacked.
LAYERS = re.compile(r"layers?$|^depths?$")
MODULES = re.compile(r"^(num|n)_\w*(blocks|experts|groups|stages)$")


class WeightSizes(NamedTuple):
    """The number of tensors in weight files, and of their elements, and the largest dimension."""

    tensors: int
    elements: int
    largest_dim: int


def check_model_dir(directory: Path, *, with_tokenizer: bool) -> None:
    """Check the JSON files of a model directory.

    Args:
        directory: The directory.
        with_tokenizer: Whether to check tokenizer.json, too.

    Raises:
        UserError: A file is not JSON or exceeds a limit, or the model has more layers than the weights.
    """
    contents = {name: read_json(directory / name) for name in SMALL_FILES if (directory / name).exists()}
    if isinstance(contents.get(CONFIG), dict):
        check_counts(contents[CONFIG], directory)
    if with_tokenizer and (directory / TOKENIZER).exists():
        status = (directory / TOKENIZER).stat()
        check_tokenizer(directory / TOKENIZER, (status.st_ino, status.st_size, status.st_mtime_ns))


def check_counts(config: dict[str, Any], directory: Path) -> None:
    """Check the numbers of layers, heads and classes in a configuration.

    Raises:
        UserError: A number is negative, the model has more layers or classes than its weights, or its feed-forward
            layers are computed in chunks.
    """
    sizes = measure_weights(directory)
    weights = "" if sizes is None else f", but its weights have {sizes.tensors:,} tensors"
    max_layers = MAX_LAYERS if sizes is None else sizes.tensors
    max_modules = MAX_LAYERS if sizes is None else max(sizes.tensors, sizes.largest_dim)
    limits = ((LAYERS, max_layers), (MODULES, max_modules), (re.compile("^num_labels$"), MAX_CLASSES))
    options = {name: value for name, value in config.items() if name not in ("id2label", "label2id")}
    for mapping in (value for value in iterate_values(options) if isinstance(value, dict)):
        for name, value in mapping.items():
            limit = next((limit for pattern, limit in limits if pattern.search(name)), None)
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and number < 0 and COUNTS.search(name):
                    raise UserError(f"{directory / CONFIG}: {name} is {number}; expected 0 or more")
                if limit is not None and isinstance(number, int) and number > limit:
                    raise UserError(
                        f"{directory / CONFIG}: {name} is {number:,}{weights}; expected at most {limit:,}: the file "
                        "is damaged or belongs to another model"
                    )
            if name == "chunk_size_feed_forward" and value:
                raise UserError(
                    f"{directory / CONFIG}: {name} is {value}; expected 0: transformers refuses texts whose length is "
                    "not a multiple of it"
                )
    max_option = 1024 if sizes is None else max(1024, sizes.largest_dim)
    for number in iterate_values(config.get("headwise")):  # of a scheme that retrofit has added
        if isinstance(number, int) and number > max_option:
            raise UserError(f"{directory / CONFIG}: an option of the scheme is {number:,}, above {max_option:,}")


def measure_weights(directory: Path) -> WeightSizes | None:
    """Return the sizes in the headers of a directory's safetensors files, or None if it has none that can be read."""
    tensors = elements = largest_dim = 0
    for path in directory.glob("*.safetensors"):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    shape = file.get_slice(name).get_shape()
                    tensors += 1
                    elements += torch.Size(shape).numel()
                    largest_dim = max([largest_dim, *shape])
        except (SafetensorError, OSError, ValueError):
            return None  # loading reports it
    return WeightSizes(tensors, elements, largest_dim) if tensors else None


def check_size(loader: Any, config: Any, directory: Path) -> None:
    """Check that the model which a configuration describes is about as large as the weights of its directory.

    The model is built without memory for its weights.

    Args:
        loader: The class with `from_pretrained`.
        config: The configuration.
        directory: The directory with the weights.

    Raises:
        UserError: It is much larger.
    """
    sizes = measure_weights(directory)
    num_bytes = sum(path.stat().st_size for path in directory.glob("pytorch_model*.bin"))
    if sizes is None and not num_bytes:
        return
    num_weights = num_bytes // 2 if sizes is None else sizes.elements  # a .bin file has at least two bytes a weight
    with torch.device("meta"):
        model = loader.from_config(config) if hasattr(loader, "from_config") else loader(config)
    num_elements = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if num_elements > MAX_SIZE_RATIO * num_weights + MAX_NEW_ELEMENTS:
        raise UserError(
            f"{directory / CONFIG}: describes a model of {num_elements:,} parameters, but its weights have "
            f"{num_weights:,}: the file is damaged or belongs to another model"
        )


@lru_cache(maxsize=16)  # the runs of a study load the same file again and again
def check_tokenizer(path: Path, version: tuple[int, ...]) -> None:
    """Check a tokenizer.json.

    Args:
        path: The file.
        version: What differs once the file has changed, and it has to be checked again.

    Raises:
        UserError: It is not JSON or exceeds a limit, a regular expression can take exponential time, or two tokens
            have the same id.
    """
    tokenizer = read_json(path, max_bytes=MAX_TOKENIZER_BYTES)
    check_vocabulary(tokenizer, path)
    check_templates(tokenizer, path)
    for pattern in find_patterns(tokenizer):
        if has_nested_repeat(pattern):
            raise UserError(
                f"{path}: the regular expression {shorten(pattern)!r} repeats a repetition, which can take exponential "
                "time; rewrite it without nested + or *"
            )


def check_vocabulary(tokenizer: Any, path: Path) -> None:
    """Check the ids of tokens. The tokenizers library reserves memory for all ids up to the largest.

    Raises:
        UserError: An id is too large, or is that of two tokens.
    """
    model = tokenizer.get("model") if isinstance(tokenizer, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        return  # lists have no ids; loading reports anything else
    tokens: dict[int, str] = {}
    for token, number in vocabulary.items():
        if not isinstance(number, int):
            continue
        if number > MAX_TOKEN_ID:
            raise UserError(f"{path}: the token {shorten(token)!r} has the id {number:,}, above {MAX_TOKEN_ID:,}")
        if number in tokens:
            names = f"{shorten(tokens[number])!r} and {shorten(token)!r}"
            raise UserError(f"{path}: the tokens {names} have the same id {number:,}: the file is damaged")
        tokens[number] = token


def check_templates(tokenizer: Any, path: Path) -> None:
    """Check the templates that add special tokens to a text.

    Raises:
        UserError: A template has a special token that the file does not define.
    """
    for template in iterate_values(tokenizer):
        if not (isinstance(template, dict) and isinstance(template.get("special_tokens"), dict)):
            continue
        for piece in iterate_values([template.get("single"), template.get("pair")]):
            token = piece.get("SpecialToken") if isinstance(piece, dict) else None
            name = token.get("id") if isinstance(token, dict) else None
            if isinstance(name, str) and name not in template["special_tokens"]:
                raise UserError(f"{path}: a template has the special token {shorten(name)!r}, which is not defined")


def find_patterns(tokenizer: Any) -> Iterator[str]:
    """Yield the regular expressions of a tokenizer."""
    for value in iterate_values(tokenizer):
        if isinstance(value, dict) and isinstance(value.get("Regex"), str):
            yield value["Regex"]


def has_nested_repeat(pattern: str) -> bool:
    """Return whether a group with an unbounded repetition is itself repeated without bound.

    Possessive quantifiers and atomic groups do not backtrack, so they may be repeated.

    Example:
        >>> has_nested_repeat("(a+)+"), has_nested_repeat("(?:ab?)+ [xy]+"), has_nested_repeat("(?>a+)+")
        (True, False, False)
    """
    # A stack of open groups: whether each is atomic, and whether it contains a repetition.
    groups, closed = [[False, False]], False
    tokens = re.compile(
        r"\\[pPkgxu]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\(\?>|\(\?<?[=!]|\(\?|\(|\)|[*+?]|\{\d*,?\d*\}|.",
        re.DOTALL,
    ).findall(pattern)
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token == "+" and index and tokens[index - 1] in ("*", "+", "?"):
            continue  # it makes the quantifier before it possessive
        if token.startswith("("):
            groups.append([token not in ("(", "(?"), False])
        elif token == ")" and len(groups) > 1:
            is_atomic, closed = groups.pop()
            closed = closed and not is_atomic
            groups[-1][1] |= closed
            if closed and is_unbounded(following):
                return True
        elif is_unbounded(token) and (following != "+" or token.startswith("{")):
            groups[-1][1] = True
    return False


def is_unbounded(quantifier: str) -> bool:
    """Return whether a quantifier repeats often: `*`, `+`, `{2,}` or a maximum of at least 10."""
    if quantifier in ("*", "+"):
        return True
    bounds = re.fullmatch(r"\{(\d*)(,?)(\d*)\}", quantifier)
    if bounds is None:
        return False
    low, comma, high = bounds.groups()
    return len(high or low) > 1 or bool(comma and not high)


def shorten(pattern: str) -> str:
    return pattern if len(pattern) <= 80 else f"{pattern[:77]}..."
