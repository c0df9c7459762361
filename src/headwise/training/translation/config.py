"""Configuration of a translation run: the options of `headwise train --task translation`, stored in `run.yaml`."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from headwise.errors import UserError
from headwise.scheme_names import ModelSchemeName, is_trainable_scheme
from headwise.training.core.config import RunConfig, absolute_if_exists


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(RunConfig):
    """Configuration of a run on pairs of sentences in two languages."""

    MIN_VALUES: ClassVar[dict[str, int]] = RunConfig.MIN_VALUES | {
        "rows": 2,
        "layers": 1,
        "heads": 1,
        "head_dim": 1,
        "feedforward": 1,
        "vocabulary": 259,
        "max_length": 2,
        "steps": 1,
        "warmup": 1,
        "average": 1,
        "beams": 1,
    }

    NOT_NEGATIVE: ClassVar[tuple[str, ...]] = (*RunConfig.NOT_NEGATIVE, "max_grad_norm")

    task: str | None = "translation"
    """`translation`."""
    data: tuple[str, ...] = ()
    """A directory with line-aligned files (train.en and train.de, dev or val, tests; optionally gzipped) or with tables
    (CSV, TSV, JSONL, Parquet); a single such file, which is split; or hub:NAME."""
    source: str | None = None
    """The source language: the extension of its files, or the name of its column."""
    target: str | None = None
    """The target language."""
    rows: int | None = None
    """Number of training pairs, drawn at random; by default all."""
    max_length: int = 256
    """Maximum number of tokens in a sentence."""
    clip: bool = False
    """Truncate longer sentences and report their number; by default they are an error."""

    model: Literal["small", "base", "big"] = "base"
    """Model size: base or big as in Shaw et al. (2018), or small, for tens of thousands of pairs."""
    scheme: ModelSchemeName = "rpr"
    """Position scheme of self-attention in the encoder and the decoder."""
    decoder_scheme: ModelSchemeName | None = None
    """Position scheme of the decoder's self-attention; by default the same as in the encoder."""
    positions: Literal["sinusoidal", "learned", "none"] | None = None
    """Position embeddings added to the input. By default sinusoidal for plain, none for all other schemes."""
    k: int | None = None
    """Clipping distance of rpr; by default 16, or 8 with --model big."""
    tables: Literal["heads", "layers"] | None = None
    """Whether rpr has one table of vectors per head or per layer; by default heads, or layers with --model big."""
    relative: Literal["both", "keys", "values"] = "both"
    """Whether rpr adds its vectors to keys, values or both."""
    layers: int | None = None
    """Number of layers of the encoder and of the decoder. The defaults of this and the next four options depend on
    --model."""
    heads: int | None = None
    """Number of attention heads."""
    head_dim: int | None = None
    """Dimension of each head."""
    feedforward: int | None = None
    """Hidden dimension of the feed-forward networks."""
    dropout: float | None = None
    """Dropout of embeddings, attention weights and sublayer outputs."""
    norm: Literal["before", "after"] = "before"
    """Layer normalization before each sublayer (pre-norm), which is easier to train, or after it (post-norm), as in the
    original Transformer."""
    vocabulary: int = 32_768
    """Number of subwords, shared by both languages. For tens of thousands of pairs, 8,192 is better."""

    epochs: float | None = None
    """Number of passes over the training pairs; by default 30."""
    steps: int | None = None
    """Number of training steps, instead of --epochs; dev is evaluated twenty times."""
    batch_size: int | None = None
    """Number of source tokens and of target tokens per step, including padding, over all processes; by default 25,000,
    or 8,192 with --model small."""
    learning_rate: float | None = None
    """Peak learning rate, after the warm-up; by default that of Vaswani et al. (2017), 1/√(width · warm-up steps)."""
    warmup: int | None = None
    """Number of warm-up steps; after them the learning rate decays as 1/√step. By default 4,000, or 400
    with --model small."""
    max_grad_norm: float = 0.0
    """Gradients with a larger norm are scaled down to it; 0 does not clip them."""
    smoothing: float = 0.1
    """Label smoothing."""
    early_stopping_patience: int | None = 5
    """Stop after this number of dev evaluations without an improvement."""
    choose: Literal["loss", "bleu"] = "loss"
    """The dev metric that selects the best checkpoint; bleu decodes dev greedily at each evaluation."""
    average: int = 1
    """Average the weights of this number of last checkpoints; 1 uses the best checkpoint."""
    beams: int = 4
    """Number of beams for decoding; 1 is greedy decoding."""
    length_penalty: float = 0.6
    """A beam's log-probability is divided by its length to this power."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.data) != 1:
            got = f", got {len(self.data)}" if self.data else ""
            raise UserError(f"--data is required: one directory or file, or hub:NAME{got}")
        if self.source is None or self.target is None:
            raise UserError("--source and --target are required: the languages, as file extensions or column names")
        if self.source == self.target:
            raise UserError(f"--source and --target must differ, got {self.source!r} for both")
        for name in ("smoothing", "dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"--{name} must be at least 0 and below 1, got {value}")
        if self.k is not None and self.k < 0:
            raise UserError(f"--k, the clipping distance, must be at least 0, got {self.k}")
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs exclude each other; give one of them")
        if "rpr" not in (self.scheme, self.decoder_scheme):
            for name in ("k", "tables", "relative"):
                if getattr(self, name) != self.default_value(name):
                    raise UserError(f"--{name} applies to --scheme rpr, not to {self.scheme}")

    @property
    def has_scheme_parameters(self) -> bool:
        return is_trainable_scheme(self.scheme) or is_trainable_scheme(self.decoder_scheme)

    def resolve_paths(self) -> Self:
        return replace(self, data=tuple(map(absolute_if_exists, self.data)))

    @property
    def pair(self) -> tuple[str, str]:
        """The source and the target language."""
        assert self.source is not None
        assert self.target is not None
        return self.source, self.target
