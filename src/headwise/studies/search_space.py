"""Search spaces of sweeps: weights of guides and values of training options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_type_hints

from headwise.errors import UserError
from headwise.studies.methods import TREATMENT_OPTIONS, Method
from headwise.training.core.config import RunConfig, option_name, parse_value

#: The guide weights that the attention guiding paper tries.
GUIDE_WEIGHTS = (0.1, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Dimension:
    """One dimension of a search space.

    Args:
        name: the name of an option or of a guide.
        values: the values to try.
        is_guide_weight: whether the name is a guide's and the values are its weights.
    """

    name: str
    values: tuple[Any, ...]
    is_guide_weight: bool = False

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int | float) for value in self.values)


def parse_search_space(base: RunConfig, over: Sequence[Sequence[str]]) -> tuple[Dimension, ...]:
    """Return the search space: guides without a weight of their own, and what `--over` names.

    Args:
        base: the base configuration.
        over: for each `--over`, a name and its values.

    Raises:
        UserError: the space is empty, an option is unknown, or a value is invalid.
    """
    guides = [name for name in getattr(base, "guides", ()) if "=" not in name]
    dimensions = {}
    for name, *texts in over:
        name = name.removeprefix("--").replace("-", "_")
        if name in dimensions:
            raise UserError(f"--over {name} is given twice")
        if not texts:
            raise UserError(f"--over {name}: values are missing, as in --over learning_rate 1e-3 1e-4")
        is_guide = name in guides
        dimensions[name] = Dimension(name, parse_values(base, name, texts, is_guide=is_guide), is_guide)
    guide_dimensions = [dimensions.pop(name, Dimension(name, GUIDE_WEIGHTS, True)) for name in guides]
    search_space = (*guide_dimensions, *dimensions.values())
    if not search_space:
        raise UserError("nothing to sweep; give --guides mdg pdg, or --over learning_rate 1e-3 1e-4")
    return search_space


def parse_values(base: RunConfig, name: str, texts: Sequence[str], *, is_guide: bool) -> tuple[Any, ...]:
    """Parse the values of `--over NAME`.

    Raises:
        UserError: the option is unknown, or a value is invalid.
    """
    hints = get_type_hints(type(base))
    if not is_guide and (name not in hints or name in ("task", "data", "seed")):
        raise UserError(f"--over {name}: expected a training option or one of --guides")
    try:
        return tuple(float(x) if is_guide else parse_value(hints[name], parse_number(x)) for x in texts)
    except (TypeError, ValueError) as error:
        raise UserError(f"--over {name} {' '.join(texts)}: {error}") from None


def parse_number(text: str) -> int | float | str:
    """Return the number that a text represents, or the text itself.

    >>> parse_number("4"), parse_number("1e-3"), parse_number("cls")
    (4, 0.001, 'cls')
    """
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return text


def build_candidate(search_space: Sequence[Dimension], values: Mapping[str, Any], base: RunConfig) -> Method:
    """Return the method with these values."""
    weights = {x.name: values[x.name] for x in search_space if x.is_guide_weight}
    overrides: dict[str, Any] = {x.name: values[x.name] for x in search_space if not x.is_guide_weight}
    if weights:
        overrides["guides"] = tuple(
            f"{name}={weights[name]:g}" if name in weights else name for name in getattr(base, "guides", ())
        )
    return Method(" ".join(format_assignment(x.name, values[x.name]) for x in search_space), overrides)


def build_grid(search_space: Sequence[Dimension], base: RunConfig) -> tuple[list[Method], list[Method]]:
    """Return all candidates of a grid, and its controls.

    The controls have no guides and no retrofit. A base configuration without both is itself the control.
    """
    names = [dimension.name for dimension in search_space]
    candidates = [
        build_candidate(search_space, dict(zip(names, values, strict=True)), base)
        for values in product(*(dimension.values for dimension in search_space))
    ]
    off = treatment_off(base)
    if not off:
        return candidates, [Method("unchanged", {})]
    shared = [x for x in search_space if not x.is_guide_weight and x.name not in TREATMENT_OPTIONS]
    controls = []
    for values in product(*(dimension.values for dimension in shared)):
        options = dict(zip([dimension.name for dimension in shared], values, strict=True))
        name = " ".join(["unchanged", *(format_assignment(*item) for item in options.items())])
        controls.append(Method(name, {**options, **off}))
    return candidates, controls


def treatment_off(base: RunConfig) -> dict[str, Any]:
    """Return the overrides that turn off guides and retrofit."""
    off: dict[str, Any] = {}
    if getattr(base, "guides", ()):
        off["guides"] = ()
    if getattr(base, "retrofit", None) is not None:
        off |= {"retrofit": None, "scheme_learning_rate": None}
    return off


def format_assignment(name: str, value: Any) -> str:
    """
    >>> format_assignment("learning_rate", 0.0010)
    'learning_rate=0.001'
    """
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


def check_sampled_values(search_space: Sequence[Dimension]) -> None:
    """Check that a sampler can sample every dimension.

    Raises:
        UserError: a dimension has fewer than two values.
    """
    for dimension in search_space:
        if len(set(dimension.values)) < 2:
            name = option_name(dimension.name).removeprefix("--")
            raise UserError(f"--over {name}: a sampler needs at least two values")
