"""What a recommender is made of."""

from typing import Any, Literal, get_args

from transformers import AutoConfig, PretrainedConfig

from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig, InputPositions, SchemeName

UserPooling = Literal["additive", "recent", "last"]


class RecommenderConfig(PretrainedConfig):
    """Two levels: words make a title, clicked news make a user. The sizes by default are the distance-aware paper's.

    Args:
        titles: of the encoder of titles: a `HeadwiseConfig`, with a scheme for words, or that of any Hugging Face
            encoder; or either as a dictionary.
        scheme, scheme_options, positions: how attention among clicked news knows where they stand in the history; see
            `HeadwiseConfig`.
        heads, head_dim, layers, feedforward, dropout: of the news level; heads · head_dim is also the width of the
            vectors of news and users.
        history: the most clicked news of a user.
        causal: whether clicked news see only those before them.
        pooling: how clicked news become a user: `additive` attention, which knows no order; `recent`, the same with a
            learned preference for the latest; or the `last` one's state.
        kwargs: as for every `PretrainedConfig`.

    Raises:
        UserError: a value that is not possible, or two that do not go together; the message names them.

    Example:
        >>> from headwise.models import HeadwiseConfig, RecommenderConfig
        >>> words = HeadwiseConfig(vocab_size=1000, word_dim=100, scheme="distance-aware")
        >>> config = RecommenderConfig(titles=words, scheme="rpr", pooling="recent")
        >>> config.dim, config.titles.scheme, config.level().scheme_options
        (256, 'distance-aware', {'k': 16})
    """

    model_type = "headwise-recommender"
    sub_configs = {"titles": AutoConfig}  # noqa: RUF012
    attribute_map = {"hidden_size": "dim", "num_attention_heads": "heads", "num_hidden_layers": "layers"}  # noqa: RUF012

    def __init__(
        self,
        *,
        titles: PretrainedConfig | dict[str, Any] | None = None,
        scheme: SchemeName = "distance-aware",
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
        self.level()
        super().__init__(**kwargs)

    @property
    def dim(self) -> int:
        """The width of the vectors of news and users."""
        return self.heads * self.head_dim

    def level(self) -> HeadwiseConfig:
        """What the layers of the news level are made of."""
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
