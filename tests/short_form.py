"""The short form of the suite: the tests and cases that `make test` runs. `make test-all` runs all of them.

`@pytest.mark.long` excludes a test or a case. `@pytest.mark.short_form("values")` keeps a few cases of a parametrized
test in which every value of every parameter occurs; with "pairs", every pair of values of two parameters occurs.
Arguments of one `parametrize` are one parameter, except with "arguments". `keep_short` keeps values of a parameter.
`choose_size` chooses between sizes of shapes or data.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest

Size = TypeVar("Size")
SIZES = {"values": 1, "arguments": 1, "pairs": 2}
_is_short = False


def choose_cases(cases: Sequence[Mapping[str, Hashable]], size: int) -> set[int]:
    """Return the indices of a few cases that have all combinations of `size` values which any case has.

    The choice is greedy: each further case has as many new combinations as possible, and values of few other cases.
    """
    combinations_by_case = [set(combinations(sorted(case.items()), min(size, len(case)))) for case in cases]
    missing = set().union(*combinations_by_case)
    chosen: set[int] = set()
    num_uses: Counter[tuple[str, Hashable]] = Counter()

    def rank(index: int) -> tuple[int, int]:
        return len(combinations_by_case[index] & missing), -sum(num_uses[item] for item in cases[index].items())

    while missing:
        index = max(range(len(cases)), key=rank)
        chosen.add(index)
        num_uses.update(cases[index].items())
        missing -= combinations_by_case[index]
    return chosen


def keep_short(values: Iterable[str | None], *kept: str) -> list[Any]:
    """Return the values of a parameter. All but the kept ones are part of the long form only."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]


def scale_examples(factor: int) -> int:
    """Return a multiple of the number of hypothesis's examples, which differs between the forms of the suite."""
    from hypothesis import settings

    assert settings.default is not None
    return factor * settings.default.max_examples


def choose_size(short: Size, long: Size) -> Size:
    """Return the size of a test in the form of the suite that runs: the short form has smaller shapes and data."""
    return short if _is_short else long


def set_form(*, is_short: bool) -> None:
    """Set the form of the suite that runs."""
    global _is_short
    _is_short = is_short


def identify_values(case: pytest.Function, *, split: bool) -> dict[str, tuple[int, ...]]:
    """Return an identity of each parameter's value. Arguments of one `parametrize` are one parameter unless `split`."""
    values = dict(case.callspec.params)
    names = [] if split else [marker.args[0] for marker in case.iter_markers("parametrize")]
    groups = [name.replace(" ", "").split(",") if isinstance(name, str) else list(name) for name in names]
    identities = {",".join(group): tuple(id(values.pop(name)) for name in group) for group in groups}
    return identities | {name: (id(value),) for name, value in values.items()}


def select_short_form(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of the short form, in their order."""
    selected = [item for item in items if item.get_closest_marker("long") is None]
    cases_by_test: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in selected:
        marker = item.get_closest_marker("short_form")
        if marker is not None and isinstance(item, pytest.Function):
            cases_by_test[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    excluded: set[pytest.Item] = set()
    for (_, cover), cases in cases_by_test.items():
        values = [identify_values(case, split=cover == "arguments") for case in cases]
        chosen = choose_cases(values, SIZES[cover])
        excluded.update(case for index, case in enumerate(cases) if index not in chosen)
    return [item for item in selected if item not in excluded]
