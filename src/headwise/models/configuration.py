"""What a headwise model is made of."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from transformers import PretrainedConfig

from headwise.attention import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL
from headwise.errors import UserError

SchemeName = Literal["none", "plain", "rpr", "transformer-xl", "tener", "distance-aware"]
InputPositions = Literal["sinusoidal", "learned", "none"]
Pooling = Literal["additive", "cls"]
Pair = Literal["joint", "siamese"]

#: What stands behind each name: `none` is plain attention that knows no positions at all, the control of every study.
SCHEMES: dict[str, type[Scheme]] = {
    "none": Plain,
    "plain": Plain,
    "rpr": RelativePositions,
    "transformer-xl": TransformerXL,
    "tener": Tener,
    "distance-aware": DistanceAware,
}

#: What a scheme takes from the model; its other arguments are options.
SIZES = ("heads", "head_dim")


class HeadwiseConfig(PretrainedConfig):
    """The sizes and choices of a headwise model; the defaults are the distance-aware paper's (Wu et al. 2021).

    Args:
        vocab_size: number of words, special tokens included.
        word_dim: width of the word vectors; projected to the model's width, heads · head_dim, where that differs.
        heads, head_dim: attention heads, and the width of one.
        layers: Transformer layers; in a hierarchy, of the words and of the sentences each.
        feedforward: inner width of the feed-forward networks, by default 4 · heads · head_dim.
        scheme: how attention knows positions: `plain` (not at all: they are added to the input), `rpr`,
            `transformer-xl`, `tener`, `distance-aware`, or `none`: plain without positions in the input either.
        scheme_options: the scheme's own arguments, such as `{"k": 16}` for `rpr` (its default here) or
            `{"rectify": False}` for `distance-aware`.
        positions: what is added to the input: `sinusoidal`, `learned` or `none`. By default the scheme's own:
            `sinusoidal` for `plain`, `none` for all others.
        dropout: of embeddings, attention weights, each layer's parts and the pooled vector.
        pooling: how the words' states become one vector: `additive` attention, or the state of the first token, `cls`.
        max_tokens: the longest text, in tokens; only learned positions depend on it.
        pair: for two texts, `joint` ([CLS] a [SEP] b [SEP] as one text) or `siamese` (each by itself, then compared).
        hierarchy: for long texts, (most words in a sentence, most sentences in a document): words make sentences,
            sentences make the document.
        pad_token_id: the padding's id; its vector is 0.
        kwargs: as for every `PretrainedConfig`: num_labels, id2label, problem_type, …

    Raises:
        UserError: a value that is not possible, or two that do not go together; the message names them.

    Example:
        >>> from headwise.models import HeadwiseConfig
        >>> config = HeadwiseConfig(vocab_size=1000, word_dim=100, scheme="rpr", num_labels=4)
        >>> config.hidden_size, config.positions, config.scheme_options
        (256, 'none', {'k': 16})
    """

    model_type = "headwise"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "dim",
        "num_attention_heads": "heads",
        "num_hidden_layers": "layers",
        "intermediate_size": "feedforward",
        "max_position_embeddings": "max_tokens",
    }

    def __init__(
        self,
        *,
        vocab_size: int = 30_000,
        word_dim: int = 300,
        heads: int = 16,
        head_dim: int = 16,
        layers: int = 1,
        feedforward: int | None = None,
        scheme: SchemeName = "distance-aware",
        scheme_options: dict[str, Any] | None = None,
        positions: InputPositions | None = None,
        dropout: float = 0.2,
        pooling: Pooling = "additive",
        max_tokens: int = 512,
        pair: Pair | None = None,
        hierarchy: tuple[int, int] | None = None,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = count("vocab_size", vocab_size)
        self.word_dim = count("word_dim", word_dim)
        self.heads, self.head_dim = count("heads", heads), count("head_dim", head_dim)
        self.layers = count("layers", layers)
        self.feedforward = count("feedforward", 4 * self.dim if feedforward is None else feedforward)
        self.scheme = one_of("scheme", scheme, tuple(SCHEMES))
        self.scheme_options = ({"k": 16} if scheme == "rpr" else {}) | dict(scheme_options or {})
        default = "sinusoidal" if scheme == "plain" else "none"
        self.positions = default if positions is None else one_of("positions", positions, get_args(InputPositions))
        self.dropout = share("dropout", dropout)
        self.pooling = one_of("pooling", pooling, get_args(Pooling))
        self.max_tokens = count("max_tokens", max_tokens)
        self.pair = None if pair is None else one_of("pair", pair, get_args(Pair))
        self.hierarchy = None if hierarchy is None else _sizes("hierarchy", hierarchy)
        self.pad_token_id = pad_token_id
        self._check_together()
        super().__init__(**kwargs)

    @property
    def dim(self) -> int:
        """The model's width."""
        return self.heads * self.head_dim

    def make_scheme(self) -> Scheme:
        """A new scheme, for one layer."""
        return make_scheme(self.scheme, self.scheme_options, heads=self.heads, head_dim=self.head_dim)

    def _check_together(self) -> None:
        check_scheme(self.scheme, self.scheme_options, heads=self.heads, head_dim=self.head_dim)
        if self.scheme == "none" and self.positions != "none":
            raise UserError(
                f"scheme none knows no positions, got positions={self.positions!r}; scheme plain takes them"
            )
        if self.positions == "sinusoidal" and self.dim % 2:
            raise UserError(f"sinusoidal positions need an even width, got heads · head_dim = {self.dim}")
        if not isinstance(self.pad_token_id, int) or not 0 <= self.pad_token_id < self.vocab_size:
            raise UserError(f"pad_token_id must lie between 0 and {self.vocab_size - 1}, got {self.pad_token_id!r}")
        if self.hierarchy is not None and self.pair == "joint":
            raise UserError(
                "a hierarchy has no joint pairs: a sentence belongs to one text; pair='siamese' goes with it"
            )
        if self.hierarchy is not None and self.pooling == "cls":
            raise UserError("a hierarchy pools by additive attention: a document has no [CLS] sentence")


def make_scheme(name: str, options: Mapping[str, Any], **sizes: int) -> Scheme:
    """A new scheme by its name; of the model's sizes it gets those that it takes."""
    kind = SCHEMES[name]
    return kind(**{size: value for size, value in sizes.items() if size in _arguments(kind)}, **options)


def check_scheme(name: str, options: Mapping[str, Any], **sizes: int) -> None:
    """Make sure that a scheme can be made.

    Raises:
        UserError: an option that the scheme does not have, or sizes that it cannot have.
    """
    known = [argument for argument in _arguments(SCHEMES[name]) if argument not in SIZES]
    for option in options:
        if option not in known:
            raise UserError(f"scheme_options: {name} has {', '.join(known) or 'no options'}; got {option!r}")
    try:
        with torch.device("meta"):
            make_scheme(name, options, **sizes)
    except (TypeError, ValueError) as error:
        raise UserError(f"scheme {name}: {error}") from None


def _arguments(kind: type[Scheme]) -> list[str]:
    """The names of a scheme's arguments; one without parameters has its base's *args and **kwargs only."""
    found = inspect.signature(kind).parameters.values()
    return [argument.name for argument in found if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]


def count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return str(value)


def share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{name} must be at least 0 and below 1, got {value!r}")
    return float(value)


def _sizes(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"{name} must be (words in a sentence, sentences in a document), got {value!r}")
    return count(f"{name}'s words", value[0]), count(f"{name}'s sentences", value[1])
