"""The short form of the suite keeps every value, or every pair of values, of parametrized tests."""

from collections import Counter
from itertools import product

import pytest

from tests.short_form import choose_cases, choose_size

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.short_form("values")
@pytest.mark.parametrize("letter", "abc")
@pytest.mark.parametrize("digit", "12")
def test_values(letter, digit): pass

@pytest.mark.short_form("pairs")
@pytest.mark.parametrize("letter", "abc")
@pytest.mark.parametrize("digit", "12")
@pytest.mark.parametrize("sign", "+-")
def test_pairs(letter, digit, sign): pass

@pytest.mark.short_form("values")
@pytest.mark.parametrize(("letter", "digit"), [("a", 1), ("a", 2), ("b", 1), ("b", 2)])
def test_tuples(letter, digit): pass

@pytest.mark.parametrize("letter", ["a", pytest.param("b", marks=pytest.mark.long)])
def test_cases(letter): pass

@pytest.mark.long
def test_long(): pass
"""
CONFTEST = """
from tests.short_form import select_short_form
def pytest_collection_modifyitems(items):
    items[:] = select_short_form(items)
"""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_combinations_of_values_are_kept(size: int) -> None:
    cases = [dict(zip("abc", values, strict=True)) for values in product(range(7), range(5), range(2))]
    chosen = [cases[index] for index in choose_cases(cases, size)]

    def combinations(some: list[dict[str, int]]) -> set[tuple[int | None, ...]]:
        """Return what is left of the cases if all but `size` values are hidden."""
        hidden = [keep for keep in product((True, False), repeat=3) if sum(keep) == min(size, 3)]
        return {
            tuple(case[name] if shown else None for name, shown in zip("abc", keep, strict=True))
            for case, keep in product(some, hidden)
        }

    assert combinations(chosen) == combinations(cases)
    assert len(chosen) == {1: 7, 2: 35}.get(size, len(cases))
    num_cases = Counter(case["c"] for case in chosen)
    assert abs(num_cases[0] - num_cases[1]) <= 1, "values are used equally often"


def collect(pytester: pytest.Pytester, *cases: str) -> list[str]:
    """Return the names of the suite's tests in the short form."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_suite=SUITE)
    lines = pytester.runpytest("--collect-only", "-q", *(f"test_suite.py::{case}" for case in cases)).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_markers(pytester: pytest.Pytester) -> None:
    names = collect(pytester)
    values = [name for name in names if name.startswith("test_values")]
    assert len(values) == 3
    assert {character for name in values for character in name.partition("[")[2]} >= set("abc12")
    pairs = [name.partition("[")[2] for name in names if name.startswith("test_pairs")]
    assert len(pairs) == 6
    assert {(name[0], name[2]) for name in pairs} == set(product("+-", "12"))
    assert {(name[0], name[4]) for name in pairs} == set(product("+-", "abc"))
    assert {(name[2], name[4]) for name in pairs} == set(product("12", "abc"))
    tuples = [name for name in names if name.startswith("test_tuples")]
    assert len(tuples) == 4, "arguments of one parametrize are one parameter"
    assert names[-1] == "test_cases[a]", "tests and cases of the long form are excluded"


def test_named_cases_are_kept(pytester: pytest.Pytester) -> None:
    cases = ["test_values[2-b]", "test_values[2-c]"]
    assert collect(pytester, *cases) == cases


def test_sizes_are_those_of_the_form(request: pytest.FixtureRequest) -> None:
    assert choose_size(short=1, long=2) == (2 if request.config.getoption("--long") else 1)
