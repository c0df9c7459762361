"""Configuration shared by all pipelines, and its conversion to and from `run.yaml`."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

import yaml

from headwise import small_files
from headwise.errors import UserError
from headwise.scheme_names import is_trainable_scheme


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The options of every pipeline; each pipeline adds its own.

    The string below a field is its help text on the command line.
    """

    #: The smallest value allowed, for options that are counts.
    MIN_VALUES: ClassVar[dict[str, int]] = {"batch_size": 1, "early_stopping_patience": 1}
    #: Options that must be positive and finite.
    POSITIVE: ClassVar[tuple[str, ...]] = ("epochs", "learning_rate", "scheme_learning_rate")
    #: Options that must be at least 0 and finite.
    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = ()

    task: str | None = None
    """Name of a built-in task; `headwise tasks` lists them. Without a task, --data names your own files."""
    data: tuple[str, ...] = ()
    """The data: a file, a directory or hub:OWNER/NAME."""
    model: str = "distance-aware"
    """A Hugging Face encoder (name or directory) to fine-tune, or the scheme of a model to train from scratch: none,
    plain, rpr, transformer-xl, tener, distance-aware, alibi, rotary, t5-bias, disentangled."""
    epochs: float | None = None
    """Number of training epochs; the default depends on the task."""
    learning_rate: float | None = None
    """Initial learning rate of AdamW, decayed linearly to 0; the default depends on the task."""
    scheme_learning_rate: float | None = None
    """Learning rate of the parameters of the position scheme (w and v of distance-aware, tables, biases), with the same
    schedule; by default that of the model."""
    batch_size: int | None = None
    """Examples per optimizer step, over all processes; the default depends on the task."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations on dev (one per epoch) without improvement; by default the number of epochs
    that 500 steps take, at least 3 and at most 10."""
    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "auto"
    """Floating-point precision; auto is bfloat16 on GPUs that support it, else float32. tf32 is float32 with matrix
    products in TensorFloat-32, which starts fewer kernels than bfloat16."""
    seed: int = 0
    """Random seed for splits, initial weights, batches and dropout."""
    deterministic: bool = False
    """Use deterministic algorithms only. Slower on a GPU; CPU runs with the same number of threads are always
    deterministic."""
    report_to: Literal["tensorboard", "wandb", "mlflow", "none"] | None = None
    """Log losses and metrics to this tracker, whose package must be installed; by default to tensorboard if it is
    installed."""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for field in fields(self):
            try:
                value = normalize_value(types[field.name], getattr(self, field.name))
            except ValueError as error:
                raise UserError(f"{option_name(field.name)} {error}") from None
            object.__setattr__(self, field.name, value)
        for name, minimum in self.MIN_VALUES.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UserError(f"{option_name(name)} must be at least {minimum}, got {value}")
        for name in self.POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{option_name(name)} must be above 0, got {value}")
        for name in self.NOT_NEGATIVE:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{option_name(name)} must be at least 0, got {value}")
        if self.scheme_learning_rate is not None and not self.has_scheme_parameters:
            raise UserError(
                "--scheme-learning-rate requires a scheme with trainable parameters, such as distance-aware or rpr"
            )

    @property
    def has_scheme_parameters(self) -> bool:
        """Whether the model has a position scheme with trainable parameters."""
        return is_trainable_scheme(self.model, getattr(self, "scheme_options", ()))

    @classmethod
    def default_value(cls, name: str) -> Any:
        """Return the default of an option."""
        return cls.__dataclass_fields__[name].default

    def resolve_paths(self) -> Self:
        """Return a copy with absolute paths, which is valid from any working directory."""
        return replace(self, data=tuple(map(absolute_if_exists, self.data)), model=absolute_if_exists(self.model))

    def to_yaml(self) -> str:
        """Return the options that differ from their defaults, and always the task, model and seed, as YAML."""
        always = {"model", "seed"} if self.task is None else {"task", "model", "seed"}
        options = {
            name: to_plain_type(value)
            for name, value in asdict(self).items()
            if name in always or value != self.default_value(name)
        }
        text: str = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
        return text

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a `run.yaml`.

        Raises:
            UserError: the file does not exist, is not YAML or contains an invalid option.
        """
        return cls.from_dict(path, read_yaml(path))

    @classmethod
    def from_dict(cls, path: Path, options: dict[str, Any]) -> Self:
        """Build a configuration from the contents of a file.

        Args:
            path: the file, for error messages.
            options: its contents.

        Raises:
            UserError: an unknown option, or a value of the wrong type.
        """
        types = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in names]
        if unknown:
            raise UserError(f"{path}: unknown option {unknown[0]!r}; expected one of {', '.join(names)}")
        values = {}
        for name, value in options.items():
            try:
                values[name] = parse_value(types[name], value)
            except (TypeError, ValueError) as error:
                raise UserError(f"{path}: {name} {error}") from None
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(RunConfig):
    """The options of pipelines that train encoders, with the names of transformers' `TrainingArguments`.

    Values that are None are chosen by `headwise.training.core.defaults`.
    """

    MIN_VALUES: ClassVar[dict[str, int]] = RunConfig.MIN_VALUES | {"gradient_accumulation_steps": 1}
    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = (*RunConfig.NOT_NEGATIVE, "weight_decay", "warmup_steps", "max_grad_norm")

    epochs: float | None = None
    """Number of training epochs; by default chosen for the number of training rows."""
    learning_rate: float | None = None
    """Peak learning rate of AdamW; by default chosen for the number of training rows and the kind of model."""
    batch_size: int | None = None
    """Rows per forward and backward pass, over all processes; by default 16 for fine-tuning (8 with fewer than 1,000
    training rows), 32 from scratch."""
    gradient_accumulation_steps: int = 1
    """Number of batches per optimizer step."""
    warmup_steps: float | None = None
    """Steps in which the learning rate increases from 0, or their share of all steps if below 1; by default 0.1 for
    fine-tuning, 0.05 from scratch."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    """Schedule of the learning rate: after the warm-up, linear and cosine decay to 0; constant has no warm-up."""
    weight_decay: float = 0.0
    """Weight decay of AdamW; with 0 it is Adam."""
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it; 0 does not clip them."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        UserError: the file does not exist, is not YAML or contains something else.
    """
    contents = small_files.read_yaml(path)
    if not isinstance(contents, dict):
        raise UserError(f"{path}: expected one option per line, as NAME: VALUE")
    return contents


def normalize_value(expected: Any, value: Any) -> Any:
    """Convert a value that was set in Python to a field's type: one file for several, and a path for a string.

    Raises:
        ValueError: the value is not one of those that are possible.

    Example:
        >>> normalize_value(tuple[str, ...], Path("a.csv")), normalize_value(Path | None, "a.txt").name
        (('a.csv',), 'a.txt')
    """
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return None if value is None else normalize_value(next(arg for arg in args if arg is not NoneType), value)
    if origin is Literal and value not in args:
        raise ValueError(f"must be one of {', '.join(args)}; got {value!r}")
    if expected == tuple[str, ...]:
        return (str(value),) if isinstance(value, str | Path) else tuple(map(str, value))
    return expected(value) if expected in (str, Path) and isinstance(value, str | Path) else value


def option_name(name: str) -> str:
    """Return the command-line spelling of an option."""
    return f"--{name.replace('_', '-')}"


def parse_scheme_options(options: tuple[str, ...]) -> dict[str, Any]:
    """Parse `--scheme-options`.

    Raises:
        UserError: an option is not NAME=VALUE.

    Example:
        >>> parse_scheme_options(("mapping=sigmoid", "k=8", "values=false"))
        {'mapping': 'sigmoid', 'k': 8, 'values': False}
    """
    parsed: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals and value):
            raise UserError(f"--scheme-options {option}: expected NAME=VALUE, such as mapping=sigmoid")
        parsed[name.replace("-", "_")] = small_files.parse_yaml(value, f"--scheme-options {option}")
    return parsed


def absolute_if_exists(name: str) -> str:
    """Return the absolute path if the name is an existing file or directory, else the name itself."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def to_plain_type(value: Any) -> Any:
    """Convert tuples and paths to types that YAML has."""
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


#: The YAML types accepted for a field type, where they differ from the type itself.
YAML_TYPES: dict[Any, Any] = {float: (int, float), Path: str}


def parse_value(expected: Any, value: Any) -> Any:
    """Convert a YAML value to a field's type.

    Raises:
        ValueError: the value does not have that type.

    Example:
        >>> from pathlib import Path
        >>> parse_value(tuple[int, int] | None, [3, 4]), parse_value(float, 2), parse_value(Path, "a.txt").name
        ((3, 4), 2, 'a.txt')
    """
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return None if value is None else parse_value(next(arg for arg in args if arg is not NoneType), value)
    if origin is Literal:
        if value not in args:
            raise ValueError(f"must be one of {', '.join(args)}; got {value!r}")
        return value
    if origin is tuple:
        types = args[:1] * len(value) if isinstance(value, list) and args[-1] is ... else args
        if isinstance(value, list) and len(types) == len(value):
            return tuple(parse_value(item_type, item) for item_type, item in zip(types, value, strict=True))
    elif isinstance(value, YAML_TYPES.get(expected, expected)) and isinstance(value, bool) == (expected is bool):
        return Path(value) if expected is Path else value
    raise ValueError(f"cannot be {repr(value)[:60]}")
