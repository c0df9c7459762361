"""Checks of data splits: lengths of texts, and fingerprints that detect data that has changed since training."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.tasks.summary import describe_lengths
from headwise.training.core import run_dir


def length_notes(lengths: Any, truncated: Mapping[str, tuple[int, int]], limit: str) -> list[str]:
    """Return notes on the lengths of texts: quantiles, and how many texts are truncated.

    Args:
        lengths: (rows,), the number of tokens of each training text, after truncation.
        truncated: for each split the number of truncated texts and of all texts.
        limit: the limit of a text, with its unit and option.

    >>> length_notes([2, 3, 8, 8], {"train": (1, 4), "dev": (0, 2)}, "8 tokens (--max-length)")
    ['lengths: median 3 tokens, 95% quantile over 8, longest over 8', \
'truncated to 8 tokens (--max-length): 1 of 4 train texts; the limit is the 75.0% quantile of train']
    >>> length_notes([8, 8], {"train": (2, 2)}, "8 tokens (--max-length)")[1]
    'truncated to 8 tokens (--max-length): 2 of 2 train texts'
    """
    notes = [f"lengths: {describe_lengths(lengths, 'tokens', truncated['train'][0])}"]
    parts = [f"{count:,} of {total:,} {split} texts" for split, (count, total) in truncated.items() if count]
    if parts:
        count, total = truncated["train"]
        quantile = f"; the limit is the {1 - count / total:.1%} quantile of train" if count < total else ""
        notes.append(f"truncated to {limit}: {', '.join(parts)}{quantile}")
    return notes


def hash_arrays(arrays: Iterable[Any]) -> str:
    """Return a hash of numeric arrays, such as those of a click log."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def check_unchanged(run: Path, split: str, fingerprint: str, paths: Sequence[str]) -> None:
    """Check that a split is the one that a run was evaluated on. Another one may contain training examples.

    Args:
        run: the run directory.
        split: the name of the split.
        fingerprint: its hash.
        paths: the files or directories of the run's data, for the message.

    Raises:
        UserError: the data has changed, or `metrics.json` has no fingerprint of the split.
    """
    recorded = run_dir.read_metrics(run, "fingerprints")["fingerprints"]
    if not isinstance(recorded, dict) or recorded.get(split) != fingerprint:
        raise UserError(
            f"{run}: the data has changed since training ({', '.join(paths)}), and its {split} split may now contain "
            "training examples; restore the data or name another data set with --data"
        )
