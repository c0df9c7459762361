"""Configuration of headwise encoders, and checks that all configurations share."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from transformers import PretrainedConfig

from headwise.attention import Plain, Scheme, schemes
from headwise.errors import UserError

InputPositions = Literal["sinusoidal", "learned", "none"]
Pooling = Literal["additive", "cls"]
Pair = Literal["joint", "siamese"]
PairActivation = Literal["leaky-relu", "relu"]

#: Schemes of models by name. `none` is plain attention without positions in the input, the control of studies.
SCHEMES: dict[str, type[Scheme]] = {"none": Plain, **schemes.SCHEMES}


class HeadwiseConfig(PretrainedConfig):
    """Configuration of a headwise encoder. The defaults are those of the distance-aware paper (Wu et al. 2021).

    Args:
        vocab_size: Number of words, including special tokens.
        word_dim: Width of word vectors. They are projected to the width of the model, heads · head_dim, if it differs.
        heads: Number of attention heads.
        head_dim: Width of a head.
        layers: Number of layers; in a hierarchical model, at the word level and again at the sentence level.
        feedforward: Inner width of the feed-forward networks (default: 4 · heads · head_dim).
        scheme: Scheme of the attention: `plain` (positions are added to the input), `rpr`, `transformer-xl`, `tener`,
            `distance-aware`, `alibi`, `rotary`, `t5-bias`, `disentangled`, or `none` (plain, without positions).
        scheme_options: Arguments of the scheme, such as `{"k": 16}` for `rpr` (the default) or
            `{"rectify": False}` for `distance-aware`.
        positions: Position embeddings of the input: `sinusoidal`, `learned` or `none` (default: `sinusoidal` for
            `plain`, else `none`).
        position_scale: Factor of sinusoidal position embeddings of words, whose norm is √(heads · head_dim / 2) without
            it. `headwise train` sets it for the norm of the word embeddings. Sentences of a hierarchy have normalized
            vectors and are not affected.
        dropout: Dropout of embeddings, attention weights, layers and the pooled vector.
        pooling: How states are pooled: `additive` attention, or the state of the first token, `cls`.
        max_tokens: Maximum length of a text; it limits learned positions only.
        pair: How two texts are encoded: `joint` ([CLS] a [SEP] b [SEP] as one text) or `siamese` (separately, then
            compared).
        pair_activation: Activation of the layer that compares a siamese pair: `leaky-relu`, with a slope of 0.1 below
            0, or `relu`, with which training can end with all units at 0 for all pairs. Models that were saved without
            this value have `relu`.
        segment_length: Recurrence of Transformer-XL: a text is encoded in segments of this number of tokens, which
            attend to themselves and, without gradients, to the previous segment (default: the whole text at once).
        hierarchy: For long texts, (words per sentence, sentences per document): words are pooled to sentences, and
            sentences to the document.
        pad_token_id: Id of the padding token, whose vector is 0.
        kwargs: Arguments of `PretrainedConfig`: num_labels, id2label, problem_type, …

    Raises:
        UserError: A value is invalid, or two values cannot be combined.

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
        scheme: schemes.ModelSchemeName = "distance-aware",
        scheme_options: dict[str, Any] | None = None,
        positions: InputPositions | None = None,
        position_scale: float = 1.0,
        dropout: float = 0.2,
        pooling: Pooling = "additive",
        max_tokens: int = 512,
        pair: Pair | None = None,
        pair_activation: PairActivation = "leaky-relu",
        segment_length: int | None = None,
        hierarchy: tuple[int, int] | None = None,
        pad_token_id: int = 0,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = check_count("vocab_size", vocab_size)
        self.word_dim = check_count("word_dim", word_dim)
        self.heads, self.head_dim = check_count("heads", heads), check_count("head_dim", head_dim)
        self.layers = check_count("layers", layers)
        self.feedforward = check_count("feedforward", 4 * self.dim if feedforward is None else feedforward)
        self.scheme = check_choice("scheme", scheme, tuple(SCHEMES))
        self.scheme_options = add_default_options(scheme, scheme_options or {})
        default = "sinusoidal" if scheme == "plain" else "none"
        self.positions = (
            default if positions is None else check_choice("positions", positions, get_args(InputPositions))
        )
        self.position_scale = check_positive("position_scale", position_scale)
        self.dropout = check_probability("dropout", dropout)
        self.pooling = check_choice("pooling", pooling, get_args(Pooling))
        self.max_tokens = check_count("max_tokens", max_tokens)
        self.pair = None if pair is None else check_choice("pair", pair, get_args(Pair))
        self.pair_activation = check_choice("pair_activation", pair_activation, get_args(PairActivation))
        self.segment_length = None if segment_length is None else check_count("segment_length", segment_length)
        self.hierarchy = None if hierarchy is None else _check_hierarchy("hierarchy", hierarchy)
        self.pad_token_id = pad_token_id
        self._check_combinations()
        super().__init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build a configuration from a saved one. Those without `pair_activation` are of models with ReLU."""
        if "pair" in config_dict:  # saved by headwise
            config_dict = {"pair_activation": "relu", **config_dict}
        return super().from_dict(config_dict, **kwargs)

    @property
    def dim(self) -> int:
        """The width of the model."""
        return self.heads * self.head_dim

    def build_scheme(self) -> Scheme:
        """Build the scheme of one layer."""
        return build_scheme(self.scheme, self.scheme_options, heads=self.heads, head_dim=self.head_dim)

    def _check_combinations(self) -> None:
        check_scheme(self.scheme, self.scheme_options, heads=self.heads, head_dim=self.head_dim)
        if self.scheme == "none" and self.positions != "none":
            raise UserError(f"scheme none has no positions, got positions={self.positions!r}; use scheme plain")
        if self.positions == "sinusoidal" and self.dim % 2:
            raise UserError(f"sinusoidal positions need an even width, got heads · head_dim = {self.dim}")
        if not isinstance(self.pad_token_id, int) or not 0 <= self.pad_token_id < self.vocab_size:
            raise UserError(f"pad_token_id must be between 0 and {self.vocab_size - 1}, got {self.pad_token_id!r}")
        if self.hierarchy is not None and self.pair == "joint":
            raise UserError("a hierarchy cannot be combined with joint pairs; use pair='siamese'")
        if self.hierarchy is not None and self.pooling == "cls":
            raise UserError("a hierarchy needs pooling='additive': a document has no [CLS] sentence")


def add_default_options(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a scheme with the defaults of models."""
    return ({"k": 16} if scheme == "rpr" else {}) | dict(options)


def build_scheme(name: str, options: Mapping[str, Any], *, heads: int, head_dim: int) -> Scheme:
    """Build a scheme by its name."""
    return schemes.make_scheme(SCHEMES[name], heads=heads, head_dim=head_dim, **options)


def check_scheme(name: str, options: Mapping[str, Any], *, heads: int, head_dim: int) -> None:
    """Check that a scheme can be built.

    Raises:
        UserError: The scheme has no such option, or does not support the sizes.
    """
    names = schemes.scheme_options(SCHEMES[name])
    for option in options:
        if option not in names:
            raise UserError(f"scheme_options: {name} has {', '.join(names) or 'no options'}; got {option!r}")
    try:
        with torch.device("meta"):
            build_scheme(name, options, heads=heads, head_dim=head_dim)
    except (TypeError, ValueError) as error:
        raise UserError(f"scheme {name}: {error}") from None


def check_count(name: str, value: Any) -> int:
    """Check that a value is a positive integer, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Check that a value is one of some strings, and return it."""
    if value not in choices:
        raise UserError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return str(value)


def check_probability(name: str, value: Any) -> float:
    """Check that a value is at least 0 and below 1, and return it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{name} must be at least 0 and below 1, got {value!r}")
    return float(value)


def check_positive(name: str, value: Any) -> float:
    """Check that a value is positive and finite, and return it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{name} must be above 0, got {value!r}")
    return float(value)


def _check_hierarchy(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"{name} must be (words per sentence, sentences per document), got {value!r}")
    return check_count(f"{name}'s words", value[0]), check_count(f"{name}'s sentences", value[1])
