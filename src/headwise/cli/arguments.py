"""Command-line options made from the fields of configuration dataclasses.

A field becomes an option of the same name, its type determines the values of the option, and the string below it is the
help text. Options that are not given are absent from the parsed arguments, so a command knows which ones a user set.
"""

import argparse
import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from headwise.errors import UserError

#: Placeholder of a value in the help text, by type.
METAVARS = {int: "N", float: "X", Path: "PATH", str: "NAME"}


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError with one line, and suggests the nearest option for a typo."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**defaults | options | {"add_help": False})
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="print this help text")
        self.help_parser: Callable[[argparse.Namespace], Parser] | None = None

    def parse(self, args: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UserError: an argument is unknown, is missing or has an invalid value.
        """
        namespace, unknown = self.parse_known_args(args)
        if unknown:
            raise UserError(describe_unknown(unknown[0], self.option_strings()))
        return namespace

    def option_strings(self) -> list[str]:
        """Return all options, those of sub-commands included."""
        subparsers = [
            parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for parser in action.choices.values()
        ]
        own = [option for action in self._actions for option in action.option_strings]
        return own + [option for parser in subparsers for option in parser.option_strings()]

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        required = "the following arguments are required: "
        if message.startswith(required):
            names = message.removeprefix(required)
            message = f"{names} {'are' if ',' in names else 'is'} required"
        raise UserError(f"{message} (see {self.prog} --help)")


class _Help(argparse.Action):
    """Prints the help text; for commands whose options depend on the task, that of the task named before it."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        (parser if parser.help_parser is None else parser.help_parser(namespace)).print_help()
        parser.exit()


def describe_unknown(argument: str, options: Sequence[str]) -> str:
    """Return the message for an argument that no option takes.

    >>> describe_unknown("--lerning-rate", ["--learning-rate", "--layers"])
    'unknown option --lerning-rate; did you mean --learning-rate?'
    >>> describe_unknown("more.csv", ["--data"])
    "unexpected argument 'more.csv'"
    """
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    name = argument.partition("=")[0]
    return f"unknown option {name}{suggest(name, options)}"


def suggest(name: str, names: Collection[str]) -> str:
    """Return a question that names the nearest of some names, or nothing where none is near."""
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def option_name(field_name: str) -> str:
    """Return what the command line calls a field.

    >>> option_name("learning_rate")
    '--learning-rate'
    """
    return f"--{field_name.replace('_', '-')}"


def add_options(
    parser: Any, config_class: type, *, exclude: Collection[str] = (), metavars: Mapping[str, str] | None = None
) -> None:
    """Add an option for every field of a configuration.

    Values stay strings; `parse_options` converts them, once it is known which configuration they are for.

    Args:
        parser: a parser, or a group of one.
        config_class: the dataclass.
        exclude: names of fields without an option.
        metavars: placeholders of values in the help text, by field.
    """
    types, helps = get_type_hints(config_class), field_docs(config_class)
    for field in fields(config_class):
        if field.name not in exclude:
            options = value_options(types[field.name])
            if "action" not in options:
                options.setdefault("metavar", (metavars or {}).get(field.name) or metavar(types[field.name]))
            text = helps.get(field.name, "") + default_text(field)
            parser.add_argument(
                option_name(field.name),
                dest=field.name,
                default=argparse.SUPPRESS,
                required=field.default is MISSING,
                help=text.replace("%", "%%"),
                **options,
            )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands have."""
    parser.add_argument("--quiet", action="store_true", help="print results and warnings only")
    parser.add_argument("--verbose", action="store_true", help="also print debug messages")


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that load models."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="allow models that contain Python code, and run it; by default they are refused",
    )


def add_safe_csv_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that write CSV files."""
    parser.add_argument(
        "--safe-csv",
        action="store_true",
        help="put an apostrophe before cells of CSV and TSV files that a spreadsheet would run as formulas; by default "
        "cells are written as they are",
    )


def value_options(type_: Any) -> dict[str, Any]:
    """Return how argparse reads the values of a type."""
    type_ = without_none(type_)
    if type_ is bool:
        return {"action": "store_true"}
    if get_origin(type_) is tuple:
        parts = get_args(type_)
        return {"nargs": "+" if parts[-1] is ... else len(parts)}
    return {}


def metavar(type_: Any) -> str:
    """Return the placeholder of a type's values in the help text."""
    type_ = without_none(type_)
    if get_origin(type_) is Literal:
        return "{" + ",".join(get_args(type_)) + "}"
    if get_origin(type_) is tuple:
        return metavar(get_args(type_)[0])
    return METAVARS.get(type_, "VALUE")


def default_text(field: Field[Any]) -> str:
    """Return the end of a help text that states the default value, except for flags and options without one."""
    if isinstance(field.default, bool) or field.default in (None, (), MISSING):
        return ""
    value = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    return f" (default: {value})"


def parse_options(config_class: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options that were given to the types of a configuration's fields.

    Args:
        config_class: the dataclass.
        values: strings, lists of strings and flags, by field.

    Raises:
        UserError: a value is not one of the type.
    """
    types = get_type_hints(config_class)
    return {name: parse_option(option_name(name), types[name], value) for name, value in values.items()}


def parse_option(option: str, type_: Any, value: Any) -> Any:
    """Convert one option's value.

    >>> parse_option("--hierarchy", tuple[int, int] | None, ["40", "30"])
    (40, 30)
    """
    type_ = without_none(type_)
    if get_origin(type_) is tuple:
        parts = get_args(type_)
        types = parts[:1] * len(value) if parts[-1] is ... else parts
        return tuple(parse_option(option, part, text) for part, text in zip(types, value, strict=True))
    if get_origin(type_) is Literal:
        choices = get_args(type_)
        if value not in choices:
            raise UserError(f"{option} must be one of {', '.join(choices)}; got {value!r}{suggest(value, choices)}")
        return value
    try:
        return type_(value)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(type_, type_.__name__)
        raise UserError(f"{option}: expected {expected}, got {value!r}") from None


def without_none(type_: Any) -> Any:
    """Return the type that an optional one holds."""
    if get_origin(type_) in (Union, UnionType):
        return next(part for part in get_args(type_) if part is not NoneType)
    return type_


@cache
def field_docs(config_class: type) -> dict[str, str]:
    """Return the string below each field of a dataclass, its base classes included."""
    docs: dict[str, str] = {}
    for cls in reversed(config_class.__mro__):
        if "__dataclass_fields__" not in vars(cls):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
                docs[field.target.id] = " ".join(str(ast.literal_eval(doc.value)).split())
    return docs
