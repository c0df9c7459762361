"""Fingerprints of data splits, which detect data that has changed since a run was trained."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.training.core import run_dir


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
