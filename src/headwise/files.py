"""Reading of data files with limits: regular files, lines of bounded length, JSON of bounded depth.

All readers of data use these functions; `small_files` reads configurations. The memory that a file takes depends on the
limits and not on the file. A file that exceeds a limit raises a `UserError`.
"""

import gzip
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from headwise.errors import UserError

#: The environment variable that sets the limit of a line.
LINE_LIMIT_VARIABLE = "HEADWISE_MAX_LINE_BYTES"
DEFAULT_LINE_LIMIT = 2**24
MAX_COUNTED_BYTES = 2**32  # of a line that is too long, whose length is reported

MAX_NESTING = 100  # of JSON

#: Compressed parts of Parquet files and archives may be larger than this only up to a ratio.
MAX_RATIO_FREE_BYTES = 2**28
MAX_COMPRESSION_RATIO = 100

GZIP_MAGIC = b"\x1f\x8b"


def max_line_bytes() -> int:
    """Return the maximum length of a line in bytes, which the environment variable HEADWISE_MAX_LINE_BYTES sets.

    Raises:
        UserError: The variable is not a positive integer.
    """
    value = os.environ.get(LINE_LIMIT_VARIABLE, str(DEFAULT_LINE_LIMIT))
    if not value.isascii() or not value.isdigit() or len(value) > 18 or int(value) < 1:
        raise UserError(f"{LINE_LIMIT_VARIABLE}: expected a positive number of bytes, got {value[:40]!r}")
    return int(value)


def check_regular(path: Path) -> None:
    """Check that a path is a regular file. Reading a pipe or device could block forever or never end.

    Raises:
        UserError: There is no such file, or it is a directory, pipe, socket or device.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if stat.S_ISDIR(mode):
        raise UserError(f"{path}: is a directory, expected a file")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is a pipe, socket or device, expected a regular file; save the data to a file")


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file.

    Raises:
        UserError: It does not exist, is not a regular file or may not be read.
    """
    check_regular(path)
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_gzip(path: Path) -> bool:
    """Return whether a regular file is gzipped, whatever its name is."""
    with open_regular(path) as file:
        return file.read(2) == GZIP_MAGIC


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. If its content is gzipped, it is decompressed."""
    with open_regular(path) as file:
        magic = file.read(2)
        file.seek(0)
        if magic != GZIP_MAGIC:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as decompressed:
            yield cast(IO[bytes], decompressed)


class LineReader:
    """Iterates over the lines of a UTF-8 text file, gzipped or not.

    Args:
        path: The file.
        hint: What to tell the user about a record that is too long.
        copy: A copy of the file to read instead; messages name `path`.

    Attributes:
        number: The number of the last line that was read, from 1.
        num_bytes: The position after that line, in bytes of the decompressed file.
    """

    def __init__(self, path: Path, hint: str = "", *, copy: Path | None = None) -> None:
        self.path = path
        self.hint = hint
        self.copy = copy
        self.number = self.num_bytes = 0
        self.record: tuple[int, int] | None = None  # the first line of the record, and the bytes before it
        self.has_moved = False

    def seek(self, num_bytes: int, number: int) -> None:
        """Continue after line `number`, which ends at position `num_bytes`."""
        self.num_bytes, self.number, self.has_moved = num_bytes, number, True
        if self.record is not None:
            self.start_record()

    def start_record(self) -> None:
        """Limit the lines from the next one on, up to the next call, to the maximum length of one line."""
        self.record = (self.number + 1, self.num_bytes)

    def __iter__(self) -> Iterator[str]:
        for line in self.read_bytes():
            if self.number == 1 and b"\0" in line:
                raise UserError(f"{self.path}, line 1: not UTF-8 but probably UTF-16; save the file as UTF-8")
            try:
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.path}, line {self.number}: not UTF-8 (byte {error.start + 1} of the line); "
                    "save the file as UTF-8"
                ) from None

    def read_bytes(self) -> Iterator[bytes]:
        """Iterate over the lines without decoding them."""
        limit = max_line_bytes()
        try:
            with open_decompressed(self.copy or self.path) as file:
                while line := self.read_line(file, limit + 1):
                    self.number += 1
                    self.num_bytes += len(line)
                    if len(line) > limit:
                        raise self.too_long(len(line) + count_rest_of_line(file, line), limit)
                    if self.record is not None and self.num_bytes - self.record[1] > limit:
                        raise self.record_too_long(limit)
                    yield line
        except EOFError:
            raise UserError(f"{self.path}: the gzip file ends after line {self.number}; it is incomplete") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{self.path}: invalid gzip file after line {self.number} ({error})") from None

    def read_line(self, file: IO[bytes], size: int) -> bytes:
        """Read the next line, up to a number of bytes."""
        if self.has_moved:
            file.seek(self.num_bytes)
            self.has_moved = False
        return file.readline(size)

    def too_long(self, length: int, limit: int) -> UserError:
        """Return the error for a line that is too long."""
        at_least = "at least " if length > MAX_COUNTED_BYTES else ""
        return UserError(
            f"{self.path}, line {self.number}: the line has {at_least}{length:,} bytes, at most {limit:,} are allowed; "
            f"check the file, or set {LINE_LIMIT_VARIABLE}"
        )

    def record_too_long(self, limit: int) -> UserError:
        """Return the error for a record of several lines that is too long."""
        assert self.record is not None
        start, num_bytes_before = self.record
        return UserError(
            f"{self.path}, line {start}: the {self.number + 1 - start:,} lines from here have "
            f"{self.num_bytes - num_bytes_before:,} bytes without an end, at most {limit:,} are allowed"
            f"{self.hint and '; '}{self.hint}"
        )


def count_rest_of_line(file: IO[bytes], line: bytes) -> int:
    """Return the number of bytes up to the next line break, without keeping them; stop at MAX_COUNTED_BYTES."""
    count = 0
    while not line.endswith(b"\n") and count <= MAX_COUNTED_BYTES and (line := file.readline(2**20)):
        count += len(line)
    return count


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 text file, gzipped or not.

    Raises:
        UserError: The file does not exist, is not UTF-8, or has a line that is too long.
    """
    return iter(LineReader(path))


def parse_json(text: str, location: str) -> Any:
    """Parse JSON of bounded depth.

    Args:
        text: The JSON value.
        location: The file and line, for messages.

    Raises:
        UserError: It is not JSON, is nested too deeply, or has a number with too many digits.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{location}: invalid JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise nested_too_deeply(location) from None
    except ValueError:  # of int()
        raise UserError(f"{location}: invalid JSON: a number has too many digits") from None
    if text.count("[") + text.count("{") > MAX_NESTING and is_nested_deeper(value, MAX_NESTING):
        raise nested_too_deeply(location)
    return value


def nested_too_deeply(location: str) -> UserError:
    """Return the error for JSON that is nested too deeply."""
    return UserError(f"{location}: invalid JSON: nested more than {MAX_NESTING} levels deep")


def is_nested_deeper(value: Any, depth: int) -> bool:
    """Return whether lists and dictionaries are nested more than `depth` levels.

    >>> is_nested_deeper([[], {"a": 1}], 2), is_nested_deeper([[], {"a": []}], 2)
    (False, True)
    """
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(depth):
        items = (item for parent in level for item in (parent.values() if isinstance(parent, dict) else parent))
        level = [item for item in items if isinstance(item, list | dict)]
    return bool(level)
