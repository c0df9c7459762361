"""Texts that are longer than the model's input: `--long-text`.

`truncate` keeps the first tokens, `head-tail` the first quarter and the end, and `windows` divides a text into
overlapping windows. Each window is a training example with the label of its text; for evaluation and prediction, the
scores of a text are the mean over its windows. `extend` truncates too, after the model has got more positions.
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


def check_long_text(mode: LongText, *, label_type: str, pair: str | None, hierarchy: Any, tokenizer: Any) -> None:
    """Check that a way to encode long texts applies.

    Raises:
        UserError: it does not.
    """
    if mode in ("truncate", "extend"):
        return
    reason = None
    if label_type == "tokens":
        reason = "tagging"
    elif pair is not None:
        reason = "text pairs"
    elif hierarchy is not None:
        reason = "hierarchical models, which read long texts sentence by sentence"
    if reason is not None:
        raise UserError(f"--long-text {mode} does not apply to {reason}")
    if not tokenizer.is_fast:
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
    rows = [int(row) for row in tokenized["overflow_to_sample_mapping"]]
    names = [name for name in ("input_ids", "attention_mask") if name in tokenized]
    encoded: dict[str, list[Any]] = {name: list(tokenized[name]) for name in names}
    encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
    counts = np.bincount(rows, minlength=len(texts))
    encoded["truncated"] = [bool(counts[row] > 1) for row in rows]
    encoded[WINDOW_ROW] = rows
    return encoded


def pool_windows(scores: Any, window_rows: Sequence[int]) -> Any:
    """Return the mean of the scores of each row's windows.

    >>> pool_windows(np.array([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), [0, 0, 1]).tolist()
    [[2.0, 1.0], [5.0, 5.0]]
    """
    scores, rows = np.asarray(scores, dtype=np.float64), np.asarray(window_rows)
    sums = np.zeros((rows.max() + 1, *scores.shape[1:]))
    np.add.at(sums, rows, scores)
    return sums / np.bincount(rows).reshape(-1, *[1] * (scores.ndim - 1))
