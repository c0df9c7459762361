"""Configuration of the news recommender."""

from typing import Any, Literal, get_args

from transformers import AutoConfig, PretrainedConfig

from headwise.attention.schemes import ModelSchemeName
from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig, InputPositions

UserPooling = Literal["additive", "recent", "last"]


class RecommenderConfig(PretrainedConfig):
    """Configuration of a recommender that encodes titles from words, and users from the news they clicked.

    The default sizes are those of the distance-aware paper (Wu et al. 2021).

    Args:
        titles: Configuration of the title encoder: a `HeadwiseConfig`, the configuration of another Hugging Face
            encoder, or a dictionary of either.
        scheme: Scheme of the attention between clicked news; see `HeadwiseConfig`.
        scheme_options: Arguments of the scheme.
        positions: Position embeddings of the history.
        heads: Number of attention heads of the user encoder; heads · head_dim is the width of news and user vectors.
        head_dim: Width of a head.
        layers: Number of layers of the user encoder.
        feedforward: Inner width of the feed-forward networks of the user encoder.
        dropout: Dropout of the user encoder.
        history: Maximum number of clicked news per user.
        causal: Whether clicked news attend only to earlier ones.
        pooling: How clicked news are pooled: `additive` attention, `recent` (additive attention with a learned
            preference for the latest clicks), or `last` (the state of the latest click).
        kwargs: Arguments of `PretrainedConfig`.

    Raises:
        UserError: A value is invalid, or two values cannot be combined.

    Example:
        >>> from headwise.models import HeadwiseConfig, RecommenderConfig
        >>> words = HeadwiseConfig(vocab_size=1000, word_dim=100, scheme="distance-aware")
        >>> config = RecommenderConfig(titles=words, scheme="rpr", pooling="recent")
        >>> config.dim, config.titles.scheme, config.user_encoder_config().scheme_options
        (256, 'distance-aware', {'k': 16})
    """

    model_type = "headwise-recommender"
    sub_configs = {"titles": AutoConfig}  # noqa: RUF012
    attribute_map = {"hidden_size": "dim", "num_attention_heads": "heads", "num_hidden_layers": "layers"}  # noqa: RUF012

    def __init__(
        self,
        *,
        titles: PretrainedConfig | dict[str, Any] | None = None,
        scheme: ModelSchemeName = "distance-aware",
        scheme_options: dict[str, Any] | None = None,
        positions: InputPositions | None = None,
        heads: int = 16,
        head_dim: int = 16,
        layers: int = 1,
        feedforward: int | None = None,
        dropout: float = 0.2,
        history: int = 50,
        causal: bool = False,
        pooling: UserPooling = "additive",
        **kwargs: Any,
    ) -> None:
        if isinstance(titles, dict):
            titles = AutoConfig.for_model(**titles)
        self.titles = HeadwiseConfig() if titles is None else titles
        self.scheme, self.scheme_options, self.positions = scheme, scheme_options, positions
        self.heads, self.head_dim, self.layers, self.feedforward = heads, head_dim, layers, feedforward
        self.dropout, self.history, self.causal = dropout, history, causal
        if pooling not in get_args(UserPooling):
            raise UserError(f"pooling must be one of {', '.join(get_args(UserPooling))}; got {pooling!r}")
        self.pooling = pooling
        self.user_encoder_config()
        super().__init__(**kwargs)

    @property
    def dim(self) -> int:
        """The width of news and user vectors."""
        return self.heads * self.head_dim

    def user_encoder_config(self) -> HeadwiseConfig:
        """Return the configuration of the user encoder's layers."""
        return HeadwiseConfig(
            heads=self.heads,
            head_dim=self.head_dim,
            layers=self.layers,
            feedforward=self.feedforward,
            scheme=self.scheme,
            scheme_options=self.scheme_options,
            positions=self.positions,
            dropout=self.dropout,
            max_tokens=self.history,
        )
