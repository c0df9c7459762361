"""Texts that are longer than the model's input: `--long-text`.

`truncate` keeps the first tokens, `head-tail` the first quarter and the end, and `windows` divides a text into
overlapping windows. Each window is a training example with the label of its text; for evaluation and prediction, the
scores of a text are the mean over its windows. Of a text pair, the longer text is divided, and each window has the
shorter one. `extend` truncates too, after the model has got more positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.training.text.config import LongText

#: The share of the tokens that head-tail takes from the start of a text.
HEAD_SHARE = 0.25
#: The share of a window that overlaps with the previous one.
OVERLAP = 0.25

#: The column of tokenized windows with the index of their row.
WINDOW_ROW = "window_row"


def check_long_text(mode: LongText, *, label_type: str, has_pair: bool, hierarchy: Any, tokenizer: Any = None) -> None:
    """Check that a method to encode long texts applies.

    Args:
        mode: the method.
        label_type: the type of the labels.
        has_pair: whether a row has two texts.
        hierarchy: the sizes of a hierarchical model, or None.
        tokenizer: the tokenizer; None if it is not known yet.

    Raises:
        UserError: it does not.
    """
    if mode in ("truncate", "extend"):
        return
    reason = None
    if label_type == "tokens":
        reason = "tagging"
    elif has_pair and mode == "head-tail":
        reason = "text pairs; windows does"
    elif hierarchy is not None:
        reason = "hierarchical models, which read long texts sentence by sentence"
    if reason is not None:
        raise UserError(f"--long-text {mode} does not apply to {reason}")
    if tokenizer is not None and not tokenizer.is_fast:
        raise UserError(f"--long-text {mode} requires a fast tokenizer; this model has {type(tokenizer).__name__}")


def cut_middle(texts: Sequence[str], tokenizer: Any, max_tokens: int) -> tuple[list[str], list[bool]]:
    """Remove the middle of texts with more than `max_tokens` tokens.

    Args:
        texts: the texts.
        tokenizer: a fast tokenizer.
        max_tokens: the number of tokens to keep, without special tokens.

    Returns:
        The texts, and whether each was cut.
    """
    offsets = tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    head = max(1, round(HEAD_SHARE * max_tokens))
    cut = [len(spans) > max_tokens for spans in offsets]
    shortened = [
        f"{text[: spans[head - 1][1]]} {text[spans[head - max_tokens][0] :]}" if is_cut and head < max_tokens else text
        for text, spans, is_cut in zip(texts, offsets, cut, strict=True)
    ]
    return shortened, cut


def encode_windows(texts: Sequence[str], tokenizer: Any, max_length: int) -> dict[str, list[Any]]:
    """Tokenize texts into overlapping windows.

    Returns:
        The inputs of the model by name, one entry per window, and the index of its text as `WINDOW_ROW`.
    """
    room = max_length - tokenizer.num_special_tokens_to_add()
    tokenized = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        stride=int(OVERLAP * room),
        return_overflowing_tokens=True,
    )
    names = [name for name in ("input_ids", "attention_mask") if name in tokenized]
    encoded: dict[str, list[Any]] = {name: list(tokenized[name]) for name in names}
    return add_sizes(encoded, [int(row) for row in tokenized["overflow_to_sample_mapping"]])


def add_sizes(encoded: dict[str, list[Any]], rows: list[int]) -> dict[str, list[Any]]:
    """Add the length of each window, whether its row has several windows, and the index of the row."""
    counts = np.bincount(rows)
    return encoded | {
        "length": [len(ids) for ids in encoded["input_ids"]],
        "truncated": [bool(counts[row] > 1) for row in rows],
        WINDOW_ROW: rows,
    }


def encode_pair_windows(
    texts: Sequence[str], pairs: Sequence[str], tokenizer: Any, max_length: int
) -> dict[str, list[Any]]:
    """Tokenize text pairs as one sequence into overlapping windows over the longer text, each with the shorter one.

    A shorter text that would take more than half of a window is truncated to half of it.

    Returns:
        As `encode_windows`, and `token_type_ids` if the tokenizer has them.
    """
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True)
    columns = [list(texts), list(pairs)]
    tokens = [tokenizer(column, add_special_tokens=False)["input_ids"] for column in columns]
    encoded: dict[str, list[Any]] = {}
    window_rows: list[int] = []

    def tokenize(rows: Sequence[int], **options: Any) -> None:
        tokenized = tokenizer(
            *([column[row] for row in rows] for column in columns),
            max_length=max_length,
            return_overflowing_tokens=True,
            return_token_type_ids=True,
            **options,
        )
        window_rows.extend(rows[index] for index in tokenized["overflow_to_sample_mapping"])
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            if name in tokenized:
                encoded.setdefault(name, []).extend(tokenized[name])

    lengths = np.array([list(map(len, ids)) for ids in tokens])
    is_long = lengths.sum(axis=0) > room
    if not is_long.all():
        tokenize(np.flatnonzero(~is_long).tolist(), truncation=True)
    for row in np.flatnonzero(is_long).tolist():  # one at a time, because the room for the longer text differs
        longer = int(lengths[1, row] > lengths[0, row])
        columns[1 - longer][row], kept = keep_start(columns[1 - longer][row], tokenizer, room // 2)
        tokenize([row], truncation=("only_first", "only_second")[longer], stride=int(OVERLAP * (room - kept)))
    order = np.argsort(window_rows, kind="stable")
    return add_sizes({name: [x[i] for i in order] for name, x in encoded.items()}, sorted(window_rows))


def keep_start(text: str, tokenizer: Any, max_tokens: int) -> tuple[str, int]:
    """Return the start of a text with at most `max_tokens` tokens, without special tokens, and their number.

    The start of a word can have more tokens than in the whole word, so that it may have to be cut again.
    """
    while True:
        spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(spans) <= max_tokens:
            return text, len(spans)
        text = text[: min(spans[max_tokens][0], len(text) - 1)]


def join_windows(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Combine the windows of texts and of their pairs, which the model encodes separately.

    Returns:
        The windows of the text that has more of them, each with the first window of the other text. The inputs of the
        second text have the prefix `pair_`.
    """
    indices: list[tuple[int, int]] = []
    for a, b in zip(*map(group_windows, (first, second)), strict=True):
        indices += [(i, b[0]) for i in a] if len(a) >= len(b) else [(a[0], i) for i in b]
    names = [name for name in first if name not in ("length", "truncated", WINDOW_ROW)]
    return {
        **{name: [first[name][i] for i, _ in indices] for name in names},
        **{f"pair_{name}": [second[name][i] for _, i in indices] for name in names},
        "length": [first["length"][i] + second["length"][j] for i, j in indices],
        "truncated": [first["truncated"][i] or second["truncated"][j] for i, j in indices],
        WINDOW_ROW: [first[WINDOW_ROW][i] for i, _ in indices],
    }


def group_windows(encoded: dict[str, list[Any]]) -> list[list[int]]:
    """Return the indices of the windows of each row."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(encoded[WINDOW_ROW]):
        groups.setdefault(row, []).append(index)
    return list(groups.values())


def pool_windows(scores: Any, window_rows: Sequence[int]) -> Any:
    """Return the mean of the scores of each row's windows.

    >>> pool_windows(np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), [0, 0, 1]).tolist()
    [[2.0, 1.0], [5.0, 5.0]]
    """
    scores, rows = np.asarray(scores, dtype=np.float64), np.asarray(window_rows)
    sums = np.zeros((rows.max() + 1, *scores.shape[1:]))
    np.add.at(sums, rows, scores)
    return sums / np.bincount(rows).reshape(-1, *[1] * (scores.ndim - 1))
