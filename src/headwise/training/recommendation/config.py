"""Configuration of a run on a click log: the options of `headwise train --task mind`, stored in `run.yaml`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

from headwise.errors import UserError
from headwise.scheme_names import ModelSchemeName, is_trainable_scheme
from headwise.training.core.config import EncoderConfig, option_name


@dataclass(frozen=True, kw_only=True)
class RecommendationConfig(EncoderConfig):
    """Configuration of a run on a click log in MIND's layout."""

    MIN_VALUES: ClassVar[dict[str, int]] = EncoderConfig.MIN_VALUES | dict.fromkeys(
        ("heads", "head_dim", "layers", "word_dim", "title_length", "history", "negatives"), 1
    )

    POSITIVE: ClassVar[tuple[str, ...]] = (*EncoderConfig.POSITIVE, "position_scale")

    data: tuple[str, ...] = ()
    """The click log: a directory with train, dev and test, or MINDsmall_train and so on, each with news.tsv and
    behaviors.tsv."""
    splits: Literal["published", "last-day"] = "published"
    """last-day: if the log has no test split with labels, as MINDsmall and MINDlarge, the last day of train becomes dev
    and the published dev becomes test; otherwise the epoch would be chosen on the split that is reported."""
    model: str = "distance-aware"
    """The title encoder: a Hugging Face encoder (name or directory) to fine-tune, or the scheme of an encoder on word
    vectors: none, plain, rpr, transformer-xl, tener, distance-aware, alibi, rotary, t5-bias, disentangled."""
    news_scheme: ModelSchemeName | None = None
    """Position scheme of the attention over clicked news; by default the same as --model, or distance-aware with a
    Hugging Face encoder."""
    position_scale: float | None = None
    """Factor of sinusoidal position embeddings of titles; by default they get 1/√2 of the mean norm of the word
    embeddings, as in Vaswani et al. (2017)."""
    scheme_options: tuple[str, ...] = ()
    """Options of the scheme, such as mapping=sigmoid, adjust=late-add or k=8; for titles, and for clicked news if they
    have the same scheme."""
    pooling: Literal["additive", "recent", "last"] = "additive"
    """How clicked news are pooled into a user vector: additive ignores their order, recent learns a preference for the
    latest, last takes the latest only."""
    causal: bool = False
    """Clicked news attend only to earlier ones."""
    vectors: Path | None = None
    """Word vectors for titles: GloVe or word2vec text format, optionally gzipped, or .npz."""
    heads: int = 16
    """Number of attention heads, in titles and over clicked news."""
    head_dim: int = 16
    """Dimension of each head."""
    layers: int = 1
    """Number of layers, in titles and over clicked news."""
    word_dim: int = 300
    """Dimension of word vectors that are trained from scratch."""
    dropout: float = 0.2
    """Dropout probability."""
    title_length: int = 30
    """Maximum number of tokens in a title; longer titles are truncated and counted."""
    history: int = 50
    """Maximum number of clicks in a user's history; the latest are used."""
    negatives: int = 4
    """Number of non-clicks sampled for each click, from the same impression."""
    epochs: float | None = None
    """Number of training epochs; by default 5, or 3 with a Hugging Face encoder."""
    learning_rate: float | None = None
    """Peak learning rate of AdamW; by default 1e-3, or 2e-5 with a Hugging Face encoder."""
    batch_size: int | None = None
    """Number of impressions per forward and backward pass, over all processes; by default 64."""
    warmup_steps: float | None = None
    """Steps in which the learning rate increases from 0, or their share of all steps if below 1; by default 0.05."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout must be at least 0 and below 1, got {self.dropout}")
        if len(self.data) != 1:
            problem = "is required" if not self.data else f"takes one directory, got {len(self.data)}"
            raise UserError(f"--data {problem}: a click log in MIND's layout, with train, dev and test")

    @property
    def has_scheme_parameters(self) -> bool:
        is_pretrained = self.model not in get_args(ModelSchemeName)
        news_scheme = self.news_scheme or ("distance-aware" if is_pretrained else None)
        return super().has_scheme_parameters or is_trainable_scheme(news_scheme, self.scheme_options)

    def resolve_paths(self) -> Self:
        return replace(super().resolve_paths(), vectors=None if self.vectors is None else self.vectors.absolute())


def check_from_scratch_options(config: RecommendationConfig) -> None:
    """Check that the configuration of a run with a pretrained encoder has no options of models trained from scratch.

    Raises:
        UserError: it has one.
    """
    for name in ("scheme_options", "position_scale", "vectors"):
        if getattr(config, name):
            raise UserError(
                f"{option_name(name)} applies to models trained from scratch, not to --model {config.model}"
            )
