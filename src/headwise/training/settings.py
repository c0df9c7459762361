"""All that a run depends on: what `headwise train` asks for, and what `run.yaml` keeps."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from headwise.mistakes import Mistake


@dataclass(frozen=True, kw_only=True)
class Settings:
    task: str | None = None
    """A task by name; `headwise tasks` lists them. Without one, the data is your own."""
    data: tuple[str, ...] = ()
    """CSV, TSV, JSONL or Parquet: one file (split 80/10/10), several, a folder with train, dev and test; or
    hub:OWNER/NAME."""
    train: tuple[str, ...] = ()
    """The training file or files, instead of --data."""
    dev: tuple[str, ...] = ()
    """The file to choose the best epoch by."""
    test: tuple[str, ...] = ()
    """The file to be judged by."""
    text: str | None = None
    """The column of the text; found by its name otherwise."""
    pair: str | None = None
    """The column of the second text, where each row has two."""
    label: str | None = None
    """The column of the label."""
    kind: Literal["classification", "multi-label", "regression", "tokens"] = "classification"
    """What your own labels are: a class, several (with | between), a number, or a tag for each word (CoNLL)."""
    rows: int | None = None
    """Learn from so many training rows only, drawn by the seed."""

    model: str = "distance-aware"
    """A Hugging Face encoder, by name or folder, or one of ours, trained from scratch: none, plain, rpr,
    transformer-xl, tener, distance-aware."""
    retrofit: Literal["distance-aware", "rpr"] | None = None
    """Give a Hugging Face model a position scheme, which starts neutral and is learnt."""
    guides: tuple[str, ...] = ()
    """What to push heads towards, each with its weight or without one for an automatic one: mdg, pdg=0.01, first,
    next, previous, delimiter, period, disagreement."""
    vectors: Path | None = None
    """Word vectors for a model of ours: GloVe or word2vec text, gzipped or not, or .npz."""
    heads: int = 16
    """Heads of a model of ours."""
    head_dim: int = 16
    """Width of a head of ours."""
    layers: int = 1
    """Layers of a model of ours."""
    word_dim: int = 300
    """Width of word vectors that are learnt from nothing."""
    positions: Literal["sinusoidal", "learned", "none"] | None = None
    """What a model of ours adds to its input. By default sinusoidal for plain, none for all others."""
    pooling: Literal["additive", "cls"] = "additive"
    """How a model of ours makes one vector of a text's."""
    pairs: Literal["joint", "siamese"] = "siamese"
    """How a model of ours reads two texts: as one, or each by itself."""
    hierarchy: tuple[int, int] | None = None
    """For long texts and a model of ours: most words in a sentence, most sentences in a text."""
    dropout: float = 0.2
    """Dropout of a model of ours."""

    epochs: float | None = None
    """How often the training rows are seen; by default the task's number."""
    learning_rate: float | None = None
    """Of Adam, falling to 0; by default the task's."""
    scheme_learning_rate: float | None = None
    """Of what --retrofit added; by default 100 times the model's."""
    batch_size: int | None = None
    """Texts in a step, of all processes together; by default the task's."""
    max_length: int | None = None
    """Longer texts are cut after so many tokens, and counted; by default the task's number."""
    patience: int = 3
    """Stop after so many epochs without a better dev figure."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What to compute in; auto takes bfloat16 on a GPU that has it."""
    seed: int = 0
    """Of splits, initial values, batches and dropout."""

    def __post_init__(self) -> None:
        least = {"rows": 2, "heads": 1, "head_dim": 1, "layers": 1, "word_dim": 1, "batch_size": 1, "max_length": 1}
        for name, low in (least | {"patience": 1}).items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise Mistake(f"--{name.replace('_', '-')} must be at least {low}, got {value}")
        for name in ("epochs", "learning_rate", "scheme_learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise Mistake(f"--{name.replace('_', '-')} must be above 0, got {value}")
        if self.hierarchy is not None and min(self.hierarchy) < 1:
            raise Mistake(f"--hierarchy must be at least 1 and 1, got {' and '.join(map(str, self.hierarchy))}")
        if not 0 <= self.dropout < 1:
            raise Mistake(f"--dropout must be at least 0 and below 1, got {self.dropout}")
        if self.scheme_learning_rate is not None and self.retrofit is None:
            raise Mistake("--scheme-learning-rate is for what --retrofit adds; there is no --retrofit")
        splits = (*self.train, *self.dev, *self.test)
        if self.task is not None:
            for name in ("train", "dev", "test", "text", "pair", "label", "kind"):
                if getattr(self, name) != default(name):
                    raise Mistake(f"--{name} is for your own data; --task {self.task} reads its own layout from --data")
        if self.task is None and not self.data and not splits:
            raise Mistake("what to learn? --data FILE for your own texts, or --task NAME (headwise tasks lists them)")

    def resolved(self) -> "Settings":
        """The same with whole paths, so that they hold from any folder."""
        return replace(
            self,
            data=tuple(map(whole, self.data)),
            train=tuple(map(whole, self.train)),
            dev=tuple(map(whole, self.dev)),
            test=tuple(map(whole, self.test)),
            vectors=None if self.vectors is None else self.vectors.absolute(),
            model=whole(self.model),
        )

    def written(self) -> str:
        """As YAML: what differs from the defaults, and what is always good to see."""
        always = {"model", "seed"}
        given = {name: plain(x) for name, x in asdict(self).items() if name in always or x != default(name)}
        text: str = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
        return text

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """The settings of a `run.yaml`.

        Raises:
            Mistake: the file is not there, is no YAML, or holds what is no setting.
        """
        try:
            found = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Mistake(f"{path}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            raise Mistake(f"{path}{'' if mark is None else f', line {mark.line + 1}'}: not YAML") from None
        if not isinstance(found, dict):
            raise Mistake(f"{path}: expected settings, a name and a value on each line")
        names = {field.name: field for field in fields(cls)}
        unknown = [name for name in found if name not in names]
        if unknown:
            raise Mistake(f"{path}: {unknown[0]!r} is no setting; there: {', '.join(names)}")
        return cls(**{name: restored(path, name, x) for name, x in found.items()})


def default(name: str) -> Any:
    return next(field.default for field in fields(Settings) if field.name == name)


def whole(name: str) -> str:
    """A path from the root, if there is such a file or folder; any other name as it is."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value


def restored(path: Path, name: str, value: Any) -> Any:
    """A value of a file as a setting has it."""
    try:
        return as_type(get_type_hints(Settings)[name], value)
    except (TypeError, ValueError) as error:
        raise Mistake(f"{path}: {name} {error}") from None


#: What a file may hold for a type, where it is not that type.
TAKEN: dict[Any, Any] = {float: (int, float), Path: str}


def as_type(wanted: Any, value: Any) -> Any:
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
        return None if value is None else as_type(next(part for part in parts if part is not NoneType), value)
    if kind is Literal:
        if value not in parts:
            raise ValueError(f"must be one of {', '.join(parts)}; got {value!r}")
        return value
    if kind is tuple:
        types = parts[:1] * len(value) if isinstance(value, list) and parts[-1] is ... else parts
        if isinstance(value, list) and len(types) == len(value):
            return tuple(as_type(part, x) for part, x in zip(types, value, strict=True))
    elif isinstance(value, TAKEN.get(wanted, wanted)) and not isinstance(value, bool):
        return Path(value) if wanted is Path else value
    raise ValueError(f"cannot be {value!r}")
