"""Configuration of the translation model."""

from typing import Any, Literal, get_args

from transformers import PretrainedConfig

from headwise.attention import Scheme
from headwise.attention.schemes import ModelSchemeName
from headwise.errors import UserError
from headwise.models.configuration import (
    SCHEMES,
    InputPositions,
    build_scheme,
    check_choice,
    check_count,
    check_probability,
    check_scheme,
)

Preset = Literal["small", "base", "big"]

#: Sizes and dropout by name. `base` and `big` are those of Shaw et al. (2018, section 4.1); `small` suits some ten
#: thousand sentence pairs.
PRESETS: dict[str, dict[str, Any]] = {
    "small": {"layers": 3, "heads": 4, "head_dim": 64, "feedforward": 1024, "dropout": 0.3},
    "base": {"layers": 6, "heads": 8, "head_dim": 64, "feedforward": 1024, "dropout": 0.1},
    "big": {"layers": 6, "heads": 16, "head_dim": 64, "feedforward": 4096, "dropout": 0.3},
}
#: Options of `rpr` by preset: `big` shares its tables between heads.
RPR_OPTIONS: dict[str, dict[str, Any]] = {
    "small": {"k": 16, "per_head": True},
    "base": {"k": 16, "per_head": True},
    "big": {"k": 8, "per_head": False},
}


class HeadwiseTranslatorConfig(PretrainedConfig):
    """Configuration of a translation model. The defaults are close to the base model of Shaw et al. (2018).

    Args:
        vocab_size: Number of subwords, shared by source and target.
        layers: Number of encoder layers, and of decoder layers.
        heads: Number of attention heads.
        head_dim: Width of a head; the width of the model is heads · head_dim.
        feedforward: Inner width of the feed-forward networks (default: 4 · heads · head_dim; `base`: 1024).
        scheme: Scheme of the encoder's self-attention; see `HeadwiseConfig`.
        scheme_options: Arguments of the scheme (default for `rpr`: `{"k": 16, "per_head": True}`).
        decoder_scheme: Scheme of the decoder's self-attention (default: the encoder's).
        decoder_scheme_options: Its arguments.
        positions: Position embeddings of both inputs: `sinusoidal`, `learned` or `none` (default: `sinusoidal` for the
            encoder scheme `plain`, else `none`).
        norm_first: Normalize before each sublayer and at the end of each stack (pre-norm, easier to train), instead of
            after each sublayer (post-norm, as in Vaswani et al. 2017).
        dropout: Dropout of embeddings, attention weights and sublayers.
        max_tokens: Maximum length of a text; it limits learned positions only.
        pad_token_id: Id of the padding token.
        bos_token_id: Id of the token that starts a target.
        eos_token_id: Id of the token that ends a text.
        kwargs: Arguments of `PretrainedConfig`.

    Raises:
        UserError: A value is invalid, or two values cannot be combined.

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
        scheme: ModelSchemeName = "rpr",
        scheme_options: dict[str, Any] | None = None,
        decoder_scheme: ModelSchemeName | None = None,
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
        self.vocab_size = check_count("vocab_size", vocab_size)
        self.layers, self.heads, self.head_dim = (
            check_count("layers", layers),
            check_count("heads", heads),
            check_count("head_dim", head_dim),
        )
        self.feedforward = check_count("feedforward", 4 * self.dim if feedforward is None else feedforward)
        self.scheme = check_choice("scheme", scheme, tuple(SCHEMES))
        self.scheme_options = complete_scheme_options(self.scheme, scheme_options)
        if decoder_scheme is None:
            decoder_scheme, decoder_scheme_options = scheme, decoder_scheme_options or self.scheme_options
        self.decoder_scheme = check_choice("decoder_scheme", decoder_scheme, tuple(SCHEMES))
        if self.decoder_scheme == "t5-bias":  # the decoder's queries have no keys after them
            decoder_scheme_options = {"bidirectional": False} | dict(decoder_scheme_options or {})
        self.decoder_scheme_options = complete_scheme_options(self.decoder_scheme, decoder_scheme_options)
        default = "sinusoidal" if scheme == "plain" else "none"
        self.positions = (
            default if positions is None else check_choice("positions", positions, get_args(InputPositions))
        )
        self.norm_first = norm_first
        self.dropout = check_probability("dropout", dropout)
        self.max_tokens = check_count("max_tokens", max_tokens)
        for name, options in ((self.scheme, self.scheme_options), (self.decoder_scheme, self.decoder_scheme_options)):
            check_scheme(name, options, heads=self.heads, head_dim=self.head_dim)
        if self.positions == "sinusoidal" and self.dim % 2:
            raise UserError(f"sinusoidal positions need an even width, got heads · head_dim = {self.dim}")
        common = {
            "pad_token_id": pad_token_id,
            "bos_token_id": bos_token_id,
            "eos_token_id": eos_token_id,
            "decoder_start_token_id": bos_token_id,
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,  # the embeddings are one parameter
        }
        super().__init__(**(common | kwargs))

    @classmethod
    def preset(cls, name: Preset, **options: Any) -> "HeadwiseTranslatorConfig":
        """Return the configuration of `small`, `base` or `big`, with some options replaced."""
        check_choice("preset", name, tuple(PRESETS))
        rpr_options = RPR_OPTIONS[name] if options.get("scheme", "rpr") == "rpr" else {}
        scheme_options = rpr_options | (options.get("scheme_options") or {})
        return cls(**(PRESETS[name] | options | {"scheme_options": scheme_options}))

    @property
    def dim(self) -> int:
        """The width of the model."""
        return self.heads * self.head_dim

    def build_scheme(self, *, decoder: bool) -> Scheme:
        """Build the scheme of one layer of the encoder or decoder."""
        name = self.decoder_scheme if decoder else self.scheme
        options = self.decoder_scheme_options if decoder else self.scheme_options
        return build_scheme(name, options, heads=self.heads, head_dim=self.head_dim)


def complete_scheme_options(scheme: str, options: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options of a scheme, with the defaults of `rpr`."""
    return (RPR_OPTIONS["base"] if scheme == "rpr" else {}) | dict(options or {})
