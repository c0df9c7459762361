"""Small JSON and YAML files from elsewhere: every defect is one line that names the file."""

import os
from pathlib import Path

import pytest

from headwise.errors import UserError
from headwise.small_files import MAX_JSON_BYTES, read_json, read_yaml

DEEP = 100_000
JSON_DEFECTS: dict[str, tuple[str | bytes, str]] = {
    "deep lists": ("[" * DEEP + "]" * DEEP, "nested more than 100 levels"),
    "deep objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested more than 100 levels"),
    "101 levels": ("[" * 101 + "]" * 101, "nested more than 100 levels"),
    "long integer": ('{"a": ' + "9" * 5000 + "}", "an integer of 5,000 digits; at most 100"),
    "unclosed": ('{"a":\n [1, 2', "line 2: not valid JSON"),
    "empty": ("", "line 1: not valid JSON"),
    "not UTF-8": (b'{"a":\n"\xff"}', "line 2: not UTF-8"),
    "large": (b"[" + b" " * MAX_JSON_BYTES + b"]", "larger than 16,777,216 bytes"),
}
YAML_DEFECTS = {
    "deep lists": ("[" * DEEP + "]" * DEEP, "nested more than 100 levels"),
    "deep mappings": ("{a: " * DEEP, "nested more than 100 levels"),
    "deep blocks": ("- " * DEEP, "nested more than 100 levels"),
    "long integer": ("a: " + "9" * 5000, "not valid YAML"),
    "long hexadecimal integer": ("a: 0x" + "f" * 5000, "an integer of more than 100 digits"),
    "long sexagesimal integer": ("a: 1" + ":10" * 5000, "an integer of more than 100 digits"),
    "long key": ("0x" + "f" * 900 + ": 1", "an integer of more than 100 digits"),
    "aliases": ("a: &a [1, 1]\nb: &b [*a, *a]\n", r"line 2: aliases \(\*a\) are not allowed"),
    "impossible date": ("a: 2001-99-99", "not valid YAML"),
    "unclosed": ("a: 1\nb: [", r"line \d: not valid YAML"),
    "tag": ("!!python/object/apply:os.system [id]", "not valid YAML"),
    "bad float": ("a: !!float b", "not valid YAML"),
    "large": ("a: " + " " * 2**20, "larger than 1,048,576 bytes"),
}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def expect_line(error: UserError, path: Path) -> None:
    assert str(error).startswith(str(path))
    assert "\n" not in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize("name", JSON_DEFECTS)
def test_json_defects(name: str, tmp_path: Path) -> None:
    content, message = JSON_DEFECTS[name]
    path = write(tmp_path / "config.json", content)
    with pytest.raises(UserError, match=message) as error:
        read_json(path)
    expect_line(error.value, path)


@pytest.mark.parametrize("name", YAML_DEFECTS)
def test_yaml_defects(name: str, tmp_path: Path) -> None:
    content, message = YAML_DEFECTS[name]
    path = write(tmp_path / "run.yaml", content)
    with pytest.raises(UserError, match=message) as error:
        read_yaml(path)
    expect_line(error.value, path)


def test_valid_files_are_read(tmp_path: Path) -> None:
    nested = "[" * 98 + "]" * 98
    assert read_json(write(tmp_path / "a.json", f'{{"a": [1, -2.5, "é", null, {nested}]}}'))["a"][:3] == [1, -2.5, "é"]
    assert read_json(write(tmp_path / "b.json", str(2**63))) == 2**63
    values = {"a": 1, "b": [True, None, "é"], "c": 2**63}
    assert read_yaml(write(tmp_path / "a.yaml", "a: 1\nb: [true, null, é]\nc: 9223372036854775808\n")) == values


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_pipes_and_missing_files(read: object, tmp_path: Path) -> None:
    assert callable(read)
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "not a regular file"), (".", "not a regular file"), ("none", "No such file")):
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)
