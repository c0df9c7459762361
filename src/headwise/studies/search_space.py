"""What a sweep tries: weights of guides, and values of any setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_type_hints

from headwise.errors import UserError
from headwise.studies.methods import Method
from headwise.training.core.config import RunConfig, option_name, parse_value

#: The weights that the guiding paper tries for α and β.
WEIGHTS = (0.1, 0.01, 0.001, 0.0001)

#: Settings that only mean something with what the unchanged model lacks.
TIED = ("scheme_learning_rate",)


@dataclass(frozen=True)
class Axis:
    """One thing that is varied.

    Args:
        name: a setting's, or a guide's.
        values: what it may be.
        guide: whether it is the weight of a guide.
    """

    name: str
    values: tuple[Any, ...]
    guide: bool = False

    @property
    def numeric(self) -> bool:
        return all(isinstance(value, int | float) for value in self.values)


def parse_search_space(base: RunConfig, over: Sequence[Sequence[str]]) -> tuple[Axis, ...]:
    """What is varied: guides that have no weight of their own, and what `--over` names.

    Args:
        base: the settings.
        over: of each, its name and its values.

    Raises:
        UserError: nothing to vary, no such setting, or values that it cannot have.
    """
    guides = [name for name in getattr(base, "guides", ()) if "=" not in name]
    given = {}
    for name, *texts in over:
        name = name.removeprefix("--").replace("-", "_")
        if name in given:
            raise UserError(f"--over {name}: is there twice")
        if not texts:
            raise UserError(f"--over {name}: which values? --over learning_rate 1e-3 1e-4")
        given[name] = Axis(name, values_of(base, name, texts, is_guide=name in guides), name in guides)
    found = [given.pop(name, Axis(name, WEIGHTS, True)) for name in guides] + list(given.values())
    if not found:
        raise UserError("what shall be swept? --guides mdg pdg, or --over learning_rate 1e-3 1e-4")
    return tuple(found)


def values_of(base: RunConfig, name: str, texts: Sequence[str], *, is_guide: bool) -> tuple[Any, ...]:
    hints = get_type_hints(type(base))
    if not is_guide and (name not in hints or name in ("task", "data", "seed")):
        raise UserError(f"--over {name}: is no setting of training, nor one of --guides")
    try:
        return tuple(float(x) if is_guide else parse_value(hints[name], number(x)) for x in texts)
    except (TypeError, ValueError) as error:
        raise UserError(f"--over {name} {' '.join(texts)}: {error}") from None


def number(text: str) -> Any:
    """A text as the number that it is, or as it is.

    >>> number("4"), number("1e-3"), number("cls")
    (4, 0.001, 'cls')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def candidate(axes: Sequence[Axis], values: Mapping[str, Any], base: RunConfig) -> Method:
    """The method that has these values."""
    weights = {axis.name: values[axis.name] for axis in axes if axis.guide}
    settings: dict[str, Any] = {axis.name: values[axis.name] for axis in axes if not axis.guide}
    if weights:
        settings["guides"] = tuple(
            f"{name}={weights[name]:g}" if name in weights else name for name in getattr(base, "guides", ())
        )
    return Method(" ".join(f"{axis.name}={shown(values[axis.name])}" for axis in axes), settings)


def grid(axes: Sequence[Axis], base: RunConfig) -> tuple[list[Method], list[Method]]:
    """All candidates, and those among them that change nothing: without guides and retrofit, or as the settings are."""
    tried = [candidate(axes, dict(zip([axis.name for axis in axes], values, strict=True)), base)
             for values in product(*(axis.values for axis in axes))]  # fmt: skip
    off = without(base)
    if not off:
        return tried, [Method("unchanged", {})]
    others = [axis for axis in axes if not axis.guide and axis.name not in TIED]
    controls = [
        Method(" ".join(["unchanged", *(f"{axis.name}={shown(x)}" for axis, x in zip(others, values, strict=True))]),
               {**dict(zip([axis.name for axis in others], values, strict=True)), **off})
        for values in product(*(axis.values for axis in others))
    ]  # fmt: skip
    return tried, controls


def without(base: RunConfig) -> dict[str, Any]:
    """What turns a model back into the one that it was made of."""
    off: dict[str, Any] = {}
    if getattr(base, "guides", ()):
        off["guides"] = ()
    if getattr(base, "retrofit", None) is not None:
        off |= {"retrofit": None, "scheme_learning_rate": None}
    return off


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def check(axes: Sequence[Axis]) -> None:
    """
    Raises:
        UserError: a sampler has nothing to draw from.
    """
    for axis in axes:
        if len(set(axis.values)) < 2:
            raise UserError(
                f"--over {option_name(axis.name).removeprefix('--')}: a sampler needs two values to draw between"
            )
