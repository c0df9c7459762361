"""The options of training runs, which `train`, `compare`, `sweep` and `reproduce` share.

A task type has its own configuration. The parser knows the options of all task types and keeps the values as strings;
once the task is known, `run_values` converts them and refuses options of other task types.
"""

from argparse import Namespace
from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any

from headwise.cli.arguments import Parser, add_options, add_output_options, option_name, parse_options
from headwise.errors import UserError
from headwise.training.core.config import RunConfig
from headwise.training.registry import TASK_TYPES, TEXT, get_task_type

#: The text below the heading of the options for labelled texts.
NOTES = (
    '"from scratch" marks options that do not apply to Hugging Face models.\n'
    "--task translation --help and --task mind --help show the options of these tasks."
)

METAVARS = {
    "data": "FILE",
    "train": "FILE",
    "dev": "FILE",
    "test": "FILE",
    "queries": "FILE",
    "documents": "FILE",
    "relevance": "FILE",
    "delimiter": "CHAR",
    "vectors": "FILE",
    "guides": "GUIDE",
    "scheme_options": "NAME=VALUE",
}


def add_run_options(parser: Parser, add_own: Callable[[Parser], None], *, exclude: Collection[str] = ()) -> None:
    """Add a command's own arguments and the options of every task type.

    Args:
        parser: the command's parser. Its help text shows the options of the task type that is named before `--help`.
        add_own: adds the command's own arguments.
        exclude: options that are among the command's own arguments.
    """
    add_own(parser)
    names = {"task", *exclude}
    for config_class in config_classes():
        add_options(parser, config_class, exclude=names, metavars=METAVARS)
        names |= {field.name for field in fields(config_class)}

    def help_parser(namespace: Namespace) -> Parser:
        task_parser = Parser(prog=parser.prog, usage="%(prog)s [options]", description=parser.description)
        add_output_options(task_parser)
        add_own(task_parser)
        task = getattr(namespace, "task", None)
        task = task[0] if isinstance(task, list) and task else task or None
        task = task.partition("=")[0] if task else None
        group = task_parser.add_argument_group(
            f"training options{f' of task {task}' if task else ''}",
            NOTES if config_class_of(task) is TEXT.config_class else "",
        )
        add_options(group, config_class_of(task), exclude={"task", *exclude}, metavars=METAVARS)
        return task_parser

    parser.help_parser = help_parser


def config_classes() -> list[type[RunConfig]]:
    """Return the configuration classes of all task types."""
    return [task_type.config_class for task_type in (TEXT, *TASK_TYPES.values())]


def option_names() -> set[str]:
    """Return the names of the training options of all task types."""
    return {field.name for each in config_classes() for field in fields(each)} - {"task"}


def config_class_of(task: str | None) -> type[RunConfig]:
    """Return the configuration class of a task.

    Raises:
        UserError: there is no such task.
    """
    if task is not None and task not in TASK_TYPES:
        from headwise import tasks  # takes a second to import

        tasks.get_task(task)
    return get_task_type(task).config_class


def split_task(arguments: Namespace, text: str | None) -> tuple[str | None, dict[str, Any]]:
    """Return the task of NAME or NAME=PATH, and the values of the configuration that it sets.

    Raises:
        UserError: the data is also given by --data.
    """
    if not text:
        return None, {}
    name, _, path = text.partition("=")
    if path and "data" in arguments:
        raise UserError(f"--task {text} and --data both name the data; use one of them")
    return name, {"task": name} | ({"data": (path,)} if path else {})


def run_values(arguments: Namespace, task: str | None) -> dict[str, Any]:
    """Return the options of training that were given, converted to the types of the task's configuration.

    Raises:
        UserError: an option is one of another task type, or has an invalid value.
    """
    config_class = config_class_of(task)
    names = option_names()
    own = {field.name for field in fields(config_class)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    for name in given:
        if name not in own:
            raise UserError(f"{option_name(name)} does not apply to {f'--task {task}' if task else 'labelled texts'}")
    return parse_options(config_class, given)
