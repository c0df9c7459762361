"""What every kind of run is asked, and how settings become `run.yaml` and come back."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import yaml

from headwise.errors import UserError


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of every kind of run; each kind adds its own."""

    #: The smallest value of settings that are counts.
    LEAST: ClassVar[dict[str, int]] = {"batch_size": 1, "patience": 1}
    #: Settings that must be above 0.
    POSITIVE: ClassVar[tuple[str, ...]] = ("epochs", "learning_rate")

    task: str | None = None
    """A task by name; `headwise tasks` lists them. Without one, the data is your own."""
    data: tuple[str, ...] = ()
    """Where the data is: a file or folder, or hub:OWNER/NAME."""
    model: str = "distance-aware"
    """A Hugging Face encoder, by name or folder, or one of ours, trained from scratch: none, plain, rpr,
    transformer-xl, tener, distance-aware."""
    epochs: float | None = None
    """How often the training rows are seen; by default the task's number."""
    learning_rate: float | None = None
    """Of Adam, falling to 0; by default the task's."""
    batch_size: int | None = None
    """Texts in a step, of all processes together; by default the task's."""
    patience: int = 3
    """Stop after so many epochs without a better dev figure."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What to compute in; auto takes bfloat16 on a GPU that has it."""
    seed: int = 0
    """Of splits, initial values, batches and dropout."""
    deterministic: bool = False
    """Compute only by what gives the same bits each time, on a GPU too, where that is slower. A CPU always does."""

    def __post_init__(self) -> None:
        for name, low in self.LEAST.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise UserError(f"{option_name(name)} must be at least {low}, got {value}")
        for name in self.POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{option_name(name)} must be above 0, got {value}")

    @classmethod
    def default_value(cls, name: str) -> Any:
        """The value of a setting that is not given."""
        return next(field.default for field in fields(cls) if field.name == name)

    def resolve_paths(self) -> Self:
        """The same with whole paths, so that they hold from any folder."""
        return replace(self, data=tuple(map(whole, self.data)), model=whole(self.model))

    def to_yaml(self) -> str:
        """As YAML: what differs from the defaults, and what is always good to see."""
        always = {"model", "seed"} if self.task is None else {"task", "model", "seed"}
        given = {name: plain(x) for name, x in asdict(self).items() if name in always or x != self.default_value(name)}
        text: str = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
        return text

    @classmethod
    def from_dict(cls, path: Path, found: dict[str, Any]) -> Self:
        """The settings that a file holds.

        Raises:
            UserError: what is no setting, or a value that it cannot have.
        """
        types = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        unknown = [name for name in found if name not in names]
        if unknown:
            raise UserError(f"{path}: {unknown[0]!r} is no setting; there: {', '.join(names)}")
        given = {}
        for name, value in found.items():
            try:
                given[name] = parse_value(types[name], value)
            except (TypeError, ValueError) as error:
                raise UserError(f"{path}: {name} {error}") from None
        return cls(**given)


def option_name(name: str) -> str:
    """What the command line calls a setting."""
    return f"--{name.replace('_', '-')}"


def whole(name: str) -> str:
    """A path from the root, if there is such a file or folder; any other name as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


#: What a file may hold for a type, where it is not that type.
TAKEN: dict[Any, Any] = {float: (int, float), Path: str}


def parse_value(wanted: Any, value: Any) -> Any:
    """A value of YAML as a type.

    Raises:
        ValueError: it cannot be that.

    Example:
        >>> from pathlib import Path
        >>> as_type(tuple[int, int] | None, [3, 4]), as_type(float, 2), as_type(Path, "a.txt").name
        ((3, 4), 2, 'a.txt')
    """
    kind, parts = get_origin(wanted), get_args(wanted)
    if kind in (Union, UnionType):
        return None if value is None else parse_value(next(part for part in parts if part is not NoneType), value)
    if kind is Literal:
        if value not in parts:
            raise ValueError(f"must be one of {', '.join(parts)}; got {value!r}")
        return value
    if kind is tuple:
        types = parts[:1] * len(value) if isinstance(value, list) and parts[-1] is ... else parts
        if isinstance(value, list) and len(types) == len(value):
            return tuple(parse_value(part, x) for part, x in zip(types, value, strict=True))
    elif isinstance(value, TAKEN.get(wanted, wanted)) and isinstance(value, bool) == (wanted is bool):
        return Path(value) if wanted is Path else value
    raise ValueError(f"cannot be {value!r}")
