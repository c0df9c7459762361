"""What is known about a simulated log."""

import json
from collections.abc import Mapping
from pathlib import Path

from headwise.errors import UserError

ORACLE_FILE = "truth.json"


def oracle(data: Path | str) -> Mapping[str, Mapping[str, float]]:
    """The best figures that can be reached on each split; nothing of a real log, of which they are not known.

    Raises:
        UserError: a `truth.json` that was not written by `headwise simulate mind`.
    """
    path = Path(data) / ORACLE_FILE
    if not path.is_file():
        return {}
    try:
        found: Mapping[str, Mapping[str, float]] = json.loads(path.read_text(encoding="utf-8"))["oracle"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: holds no figures of an oracle; headwise simulate mind writes them") from None
    return found
