"""Content hashes of data sets."""

import hashlib
import json
from collections.abc import Sequence

from datasets import Dataset

BATCH_ROWS = 1000


def hash_dataset(rows: Dataset, columns: Sequence[str]) -> str:
    """Return a hash of a split.

    Args:
        rows: The split.
        columns: The columns that identify an example, of which those that the split has are hashed.
    """
    present = rows.select_columns([name for name in columns if name in rows.column_names]).with_format(None)
    digest = hashlib.sha256()
    for batch in present.iter(BATCH_ROWS):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return digest.hexdigest()
