"""The reader of JSON Lines files."""

import json
from collections.abc import Sequence
from typing import Any, cast

from headwise.errors import UserError
from headwise.files import LineReader, parse_json
from headwise.tasks.formats.batch import NumberedRows, missing_column


def parse_json_lines(lines: LineReader, columns: Sequence[str] | None) -> tuple[Sequence[str] | None, NumberedRows]:
    """Parse one JSON object per line."""
    return columns, iterate_json(lines, columns)


def iterate_json(lines: LineReader, columns: Sequence[str] | None) -> NumberedRows:
    """Iterate over the objects of a JSON Lines file, or over the values of some keys, None for missing ones.

    Raises:
        UserError: A line is invalid, or a key is in no line.
    """
    path, missing, record = lines.path, set(columns or ()), {}
    for line in lines:
        if line.isspace():
            continue
        location = f"{path}, line {lines.number}"
        if lines.number == 1 and line.startswith("["):
            raise UserError(f"{path}: a JSON array; expected one object per line (JSON Lines)")
        record = parse_json(line, location)
        if "\\ud" in line.lower() and not is_utf8(record):
            raise UserError(f"{location}: contains a lone surrogate (\\ud800 to \\udfff), which is not text")
        if not isinstance(record, dict):
            raise UserError(f"{location}: expected a JSON object, got {line.strip()[:40]}")
        if columns is None:
            yield lines.number, cast(Any, record)
            continue
        missing -= record.keys()
        yield lines.number, [record.get(name) for name in columns]
    if missing and record:
        raise missing_column(path, min(missing), record)


def is_utf8(record: Any) -> bool:
    """Return whether all strings of a record can be encoded as UTF-8."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
