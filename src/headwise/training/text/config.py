"""All that a run on texts depends on: what `headwise train` asks for, and what `run.yaml` keeps."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from headwise.errors import UserError
from headwise.training.core.config import RunConfig, whole

#: Settings that say how a model of ours is made; one that is trained already is made.
FROM_SCRATCH_ONLY = (
    "vectors",
    "scheme_options",
    "heads",
    "head_dim",
    "layers",
    "word_dim",
    "positions",
    "pooling",
    "hierarchy",
    "dropout",
)


@dataclass(frozen=True, kw_only=True)
class TextConfig(RunConfig):
    """Of texts with labels: classes, ratings, tags, pairs, rankings."""

    LEAST: ClassVar[dict[str, int]] = RunConfig.LEAST | {
        "heads": 1,
        "head_dim": 1,
        "layers": 1,
        "word_dim": 1,
        "max_length": 1,
    }
    POSITIVE: ClassVar[tuple[str, ...]] = (*RunConfig.POSITIVE, "scheme_learning_rate")

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
    label_type: Literal["classification", "multi-label", "regression", "tokens"] = "classification"
    """What your own labels are: a class, several (with | between), a number, or a tag for each word (CoNLL)."""
    rows: float | None = None
    """Learn from so many training rows only, drawn by the seed; below 1 it is a share of them."""

    retrofit: Literal["distance-aware", "rpr"] | None = None
    """Give a Hugging Face model a position scheme, which starts neutral and is learnt."""
    classifier: Literal["own", "first-token"] | None = None
    """How a Hugging Face model's states become scores: by its own head, the default; or W · ReLU(h) of the first token,
    as in the attention-guiding paper."""
    guides: tuple[str, ...] = ()
    """What to push heads towards, each with its weight or without one for an automatic one: mdg, pdg=0.01, first,
    next, previous, delimiter, period, disagreement, pmi, word-similarity. mdg@6=0.01 guides layer 6 only, from 0."""
    vectors: Path | None = None
    """Word vectors for a model of ours: GloVe or word2vec text, gzipped or not, or .npz."""
    scheme_options: tuple[str, ...] = ()
    """What a model of ours has its scheme made with, such as mapping=sigmoid, adjust=late-add, k=8 or values=false."""
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

    scheme_learning_rate: float | None = None
    """Of what --retrofit added; by default 100 times the model's."""
    max_length: int | None = None
    """Longer texts are cut after so many tokens, and counted; by default the task's number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hierarchy is not None and min(self.hierarchy) < 1:
            raise UserError(f"--hierarchy must be at least 1 and 1, got {' and '.join(map(str, self.hierarchy))}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout must be at least 0 and below 1, got {self.dropout}")
        if self.scheme_learning_rate is not None and self.retrofit is None:
            raise UserError("--scheme-learning-rate is for what --retrofit adds; there is no --retrofit")
        if self.rows is not None and not (0 < self.rows < 1 or (self.rows >= 2 and self.rows == int(self.rows))):
            raise UserError(f"--rows must be a whole number of at least 2, or a share below 1; got {self.rows:g}")
        splits = (*self.train, *self.dev, *self.test)
        if self.task is not None:
            for name in ("train", "dev", "test", "text", "pair", "label", "label_type"):
                if getattr(self, name) != self.default_value(name):
                    raise UserError(
                        f"--{name} is for your own data; --task {self.task} reads its own layout from --data"
                    )
        if self.task is None and not self.data and not splits:
            raise UserError("what to learn? --data FILE for your own texts, or --task NAME (headwise tasks lists them)")

    def resolve_paths(self) -> Self:
        return replace(
            super().resolve_paths(),
            train=tuple(map(whole, self.train)),
            dev=tuple(map(whole, self.dev)),
            test=tuple(map(whole, self.test)),
            vectors=None if self.vectors is None else self.vectors.absolute(),
        )
