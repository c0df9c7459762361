"""What a translator is made of."""

from typing import Any, Literal, get_args

from transformers import PretrainedConfig

from headwise.attention import Scheme
from headwise.errors import UserError
from headwise.models.configuration import (
    SCHEMES,
    InputPositions,
    SchemeName,
    check_scheme,
    count,
    make_scheme,
    one_of,
    share,
)

Preset = Literal["small", "base", "big"]

#: Sizes and dropout by name: `base` and `big` are those of Shaw et al. (2018, section 4.1), with tables of k = 16 and
#: vectors of each head's own, and of k = 8 and vectors that a layer's heads share. `small` is for some ten thousand
#: pairs.
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"layers": 3, "heads": 4, "head_dim": 64, "feedforward": 1024, "dropout": 0.3},
    "base": {"layers": 6, "heads": 8, "head_dim": 64, "feedforward": 1024, "dropout": 0.1},
    "big": {"layers": 6, "heads": 16, "head_dim": 64, "feedforward": 4096, "dropout": 0.3},
}
TABLES: dict[str, dict[str, Any]] = {
    "small": {"k": 16, "per_head": True},
    "base": {"k": 16, "per_head": True},
    "big": {"k": 8, "per_head": False},
}


class HeadwiseTranslatorConfig(PretrainedConfig):
    """The sizes and choices of a translator; the defaults are near the base model of Shaw et al. (2018).

    Args:
        vocab_size: number of subwords, which source and target share.
        layers: of the encoder and of the decoder each.
        heads, head_dim: attention heads, and the width of one; the model's width is their product.
        feedforward: inner width of the feed-forward networks, by default 4 · heads · head_dim (`base`: 1024).
        scheme: how self-attention knows positions, in the encoder: see `HeadwiseConfig`.
        scheme_options: the scheme's own arguments; for `rpr` by default `{"k": 16, "per_head": True}`.
        decoder_scheme, decoder_scheme_options: the same in the decoder; by default as in the encoder.
        positions: what is added to the input of both: `sinusoidal`, `learned` or `none`. By default the encoder
            scheme's own: `sinusoidal` for `plain`, `none` for all others.
        norm_first: normalise before each part of a layer, and once at the end of each stack, as later Transformers do:
            it trains without care. False normalises after each part, as Vaswani et al. did.
        dropout: of embeddings, attention weights and each layer's parts.
        max_tokens: the longest text, in tokens; only learned positions depend on it.
        pad_token_id, bos_token_id, eos_token_id: padding, what a target begins with when it is decoded, and what ends
            a text.
        kwargs: as for every `PretrainedConfig`.

    Raises:
        UserError: a value that is not possible, or two that do not go together; the message names them.

    Example:
        >>> from headwise.models import HeadwiseTranslatorConfig
        >>> config = HeadwiseTranslatorConfig.preset("big", vocab_size=32_768)
        >>> config.hidden_size, config.scheme_options
        (1024, {'k': 8, 'per_head': False})
    """

    model_type = "headwise-translator"
    is_encoder_decoder = True
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
        vocab_size: int = 32_768,
        layers: int = 6,
        heads: int = 8,
        head_dim: int = 64,
        feedforward: int | None = None,
        scheme: SchemeName = "rpr",
        scheme_options: dict[str, Any] | None = None,
        decoder_scheme: SchemeName | None = None,
        decoder_scheme_options: dict[str, Any] | None = None,
        positions: InputPositions | None = None,
        norm_first: bool = True,
        dropout: float = 0.1,
        max_tokens: int = 512,
        pad_token_id: int = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        **kwargs: Any,
    ) -> None:
        self.pad_token_id = pad_token_id
        self.vocab_size = count("vocab_size", vocab_size)
        self.layers, self.heads, self.head_dim = (
            count("layers", layers),
            count("heads", heads),
            count("head_dim", head_dim),
        )
        self.feedforward = count("feedforward", 4 * self.dim if feedforward is None else feedforward)
        self.scheme = one_of("scheme", scheme, tuple(SCHEMES))
        self.scheme_options = options_of(self.scheme, scheme_options)
        if decoder_scheme is None:
            decoder_scheme, decoder_scheme_options = scheme, decoder_scheme_options or self.scheme_options
        self.decoder_scheme = one_of("decoder_scheme", decoder_scheme, tuple(SCHEMES))
        self.decoder_scheme_options = options_of(self.decoder_scheme, decoder_scheme_options)
        default = "sinusoidal" if scheme == "plain" else "none"
        self.positions = default if positions is None else one_of("positions", positions, get_args(InputPositions))
        self.norm_first = norm_first
        self.dropout = share("dropout", dropout)
        self.max_tokens = count("max_tokens", max_tokens)
        for options, of in ((self.scheme_options, self.scheme), (self.decoder_scheme_options, self.decoder_scheme)):
            check_scheme(of, options, heads=self.heads, head_dim=self.head_dim)
        if self.positions == "sinusoidal" and self.dim % 2:
            raise UserError(f"sinusoidal positions need an even width, got heads · head_dim = {self.dim}")
        told = {
            "pad_token_id": pad_token_id,
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "decoder_start_token_id": bos_token_id,
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,  # there is one table, and nothing to tie
        }
        super().__init__(**(told | kwargs))

    @classmethod
    def preset(cls, name: Preset, **options: Any) -> "HeadwiseTranslatorConfig":
        """The configuration of `small`, `base` or `big`; options beside it win."""
        one_of("preset", name, tuple(PRESETS))
        given = options.get("scheme_options") or {}
        tables = TABLES[name] if options.get("scheme", "rpr") == "rpr" else {}
        return cls(**(PRESETS[name] | options | {"scheme_options": tables | given}))

    @property
    def dim(self) -> int:
        """The model's width."""
        return self.heads * self.head_dim

    def make_scheme(self, *, decoder: bool) -> Scheme:
        """A new scheme, for one layer of the encoder or the decoder."""
        name = self.decoder_scheme if decoder else self.scheme
        options = self.decoder_scheme_options if decoder else self.scheme_options
        return make_scheme(name, options, heads=self.heads, head_dim=self.head_dim)


def options_of(scheme: str, given: dict[str, Any] | None) -> dict[str, Any]:
    return (TABLES["base"] if scheme == "rpr" else {}) | dict(given or {})
