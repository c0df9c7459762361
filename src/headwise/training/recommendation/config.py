"""All that a run on a click log depends on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from headwise.errors import UserError
from headwise.training.core.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class RecommendationConfig(RunConfig):
    """Of click logs in MIND's layout."""

    MIN_VALUES: ClassVar[dict[str, int]] = RunConfig.MIN_VALUES | dict.fromkeys(
        ("heads", "head_dim", "layers", "word_dim", "title_length", "history", "negatives"), 1
    )

    data: tuple[str, ...] = ()
    """The click log: a folder with folders train, dev and test, or such as MINDsmall_train, in each news.tsv and
    behaviors.tsv."""
    model: str = "distance-aware"
    """What reads titles: a Hugging Face encoder, by name or folder, or words by a scheme of ours: none, plain, rpr,
    transformer-xl, tener, distance-aware."""
    news_scheme: Literal["none", "plain", "rpr", "transformer-xl", "tener", "distance-aware"] | None = None
    """How clicked news know where they stand in the history; by default as --model, or distance-aware after a Hugging
    Face encoder."""
    pooling: Literal["additive", "recent", "last"] = "additive"
    """How clicked news become a user: without order, with a learned preference for the latest, or the latest only."""
    causal: bool = False
    """Clicked news see only those before them."""
    vectors: Path | None = None
    """Word vectors for titles: GloVe or word2vec text, gzipped or not, or .npz."""
    heads: int = 16
    """Heads, of either level."""
    head_dim: int = 16
    """Width of a head."""
    layers: int = 1
    """Layers, of either level."""
    word_dim: int = 300
    """Width of word vectors that are learnt from nothing."""
    dropout: float = 0.2
    """Dropout."""
    title_length: int = 30
    """Longer titles are cut after so many tokens, and counted."""
    history: int = 50
    """The latest clicks of a user that are looked at."""
    negatives: int = 4
    """Non-clicks that are drawn for each click, of the same impression."""
    batch_size: int | None = None
    """Impressions in a step, of all processes together; by default 64."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout must be at least 0 and below 1, got {self.dropout}")
        if len(self.data) != 1:
            told = "is missing" if not self.data else f"takes one folder, got {len(self.data)}"
            raise UserError(f"--data FOLDER {told}: a click log with train, dev and test in MIND's layout")

    def resolve_paths(self) -> Self:
        return replace(super().resolve_paths(), vectors=None if self.vectors is None else self.vectors.absolute())
