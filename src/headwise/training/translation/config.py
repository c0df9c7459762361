"""All that a translator's run depends on: what `headwise train --task translation` asks for, and `run.yaml` keeps."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from headwise.errors import UserError
from headwise.training.core.config import RunConfig, absolute_if_exists


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(RunConfig):
    """Of pairs of sentences in two languages."""

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

    task: str | None = "translation"
    """`translation`."""
    data: tuple[str, ...] = ()
    """A folder with line-aligned files (train.en and train.de, dev or val, tests; gzipped or not) or with tables (CSV,
    TSV, JSONL, Parquet); one such file, which is split; or hub:NAME."""
    source: str | None = None
    """The language to translate from: the ending of its files, or its column's name."""
    target: str | None = None
    """The language to translate to."""
    rows: int | None = None
    """Learn from so many training pairs only, drawn by the seed."""
    max_length: int = 256
    """The most tokens in a sentence."""
    clip: bool = False
    """Cut longer sentences, which are counted; otherwise they are an error."""

    model: Literal["small", "base", "big"] = "base"
    """Sizes: those of Shaw et al. (2018), or small, for some ten thousand pairs."""
    scheme: Literal["none", "plain", "rpr", "transformer-xl", "tener", "distance-aware"] = "rpr"
    """How self-attention knows positions."""
    decoder_scheme: Literal["none", "plain", "rpr", "transformer-xl", "tener", "distance-aware"] | None = None
    """The same in the decoder; by default as in the encoder."""
    positions: Literal["sinusoidal", "learned", "none"] | None = None
    """What is added to the input. By default sinusoidal for plain, none for all others."""
    k: int | None = None
    """Clipping distance of rpr; by default the model's: 16, big 8."""
    tables: Literal["heads", "layers"] | None = None
    """Whose vectors rpr has, each head's own or a layer's; by default the model's: heads, big layers."""
    relative: Literal["both", "keys", "values"] = "both"
    """Where rpr adds its vectors."""
    layers: int | None = None
    """Layers of the encoder and of the decoder each; by default the model's, like the sizes below."""
    heads: int | None = None
    """Attention heads."""
    head_dim: int | None = None
    """Width of a head."""
    feedforward: int | None = None
    """Inner width of the feed-forward networks."""
    dropout: float | None = None
    """Of embeddings, attention weights and each layer's parts."""
    norm: Literal["before", "after"] = "before"
    """Normalise before each part of a layer, which trains without care, or after it, as the first Transformer did."""
    vocabulary: int = 32_768
    """Subwords, which both languages share. For some ten thousand pairs, 8,192 are better."""

    epochs: float | None = None
    """How often the training pairs are seen; by default 30."""
    steps: int | None = None
    """Learn for so many steps instead, with twenty looks at dev."""
    batch_size: int | None = None
    """Tokens in a step, of source and of target each, with padding, of all processes together; by default 25,000, small
    8,192."""
    learning_rate: float | None = None
    """The highest, after the warm-up; by default that of Vaswani et al. (2017), 1/√(width · warm-up steps)."""
    warmup: int | None = None
    """Steps in which the learning rate rises; then it falls with 1/√step. By default 4,000, small 400."""
    smoothing: float = 0.1
    """Label smoothing."""
    patience: int = 5
    """Stop after so many looks at dev without a better figure."""
    choose: Literal["loss", "bleu"] = "loss"
    """The dev figure that chooses the best checkpoint; BLEU decodes dev each time, greedily."""
    average: int = 1
    """Take the mean of the last so many checkpoints instead of the best one."""
    beams: int = 4
    """Beams of the decoding; 1 is greedy."""
    length_penalty: float = 0.6
    """What a beam's log-probability is divided by: its length to this power."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.data) != 1:
            raise UserError(f"--data: name one folder or file, or hub:NAME; got {len(self.data)}")
        if self.source is None or self.target is None:
            raise UserError(
                "--source and --target: between which languages? They are endings of files or names of columns"
            )
        if self.source == self.target:
            raise UserError(f"--source and --target are both {self.source!r}")
        for name in ("smoothing", "dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"--{name} must be at least 0 and below 1, got {value}")
        if self.k is not None and self.k < 0:
            raise UserError(f"--k, the clipping distance, must be 0 or more, got {self.k}")
        if self.steps is not None and self.epochs is not None:
            raise UserError("--steps and --epochs: give one of them")
        if "rpr" not in (self.scheme, self.decoder_scheme):
            for name in ("k", "tables", "relative"):
                if getattr(self, name) != self.default_value(name):
                    raise UserError(f"--{name} is for --scheme rpr, not for {self.scheme}")

    def resolve_paths(self) -> Self:
        return replace(self, data=tuple(map(absolute_if_exists, self.data)))

    @property
    def pair(self) -> tuple[str, str]:
        """The languages."""
        assert self.source is not None
        assert self.target is not None
        return self.source, self.target
