"""A translator: an encoder and a decoder whose self-attention follows a scheme (Shaw et al. 2018).

B texts, N source and T target tokens; D is the model's width, heads · head_dim. One table of word vectors serves
source, target and the choice of the next token.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from headwise.attention import DecoderLayer, EncoderLayer, Scheme
from headwise.attention.sinusoids import sinusoids
from headwise.errors import UserError
from headwise.models.translator_configuration import HeadwiseTranslatorConfig


class Positions(nn.Module):
    """Adds to each state where it stands: sinusoids, learned vectors, or nothing."""

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__()
        self.sinusoidal = config.positions == "sinusoidal"
        self.learned = nn.Embedding(config.max_tokens, config.dim) if config.positions == "learned" else None

    def forward(self, x: Tensor, first: int = 0) -> Tensor:
        end = first + x.shape[1]
        if self.sinusoidal:
            return x + sinusoids(torch.arange(first, end, device=x.device), x.shape[2], x.dtype)
        if self.learned is None:
            return x
        if end > self.learned.num_embeddings:
            raise UserError(f"learned positions end at {self.learned.num_embeddings}, got a text of length {end}")
        return x + self.learned.weight[first:end]


class Encoder(nn.Module):
    """Source ids → states; it holds the word vectors, which the decoder reads too."""

    main_input_name = "input_ids"  # for `generate`

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__()
        self.padding = config.pad_token_id
        self.words = nn.Embedding(config.vocab_size, config.dim, padding_idx=config.pad_token_id)
        self.positions = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(scheme=config.make_scheme(decoder=False), **sizes(config)) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim) if config.norm_first else nn.Identity()

    def embed(self, ids: Tensor) -> Tensor:
        """(B, N) ids → vectors (B, N, D), as large as positions are."""
        vectors: Tensor = self.words(ids) * math.sqrt(self.words.embedding_dim)
        return vectors

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        """(B, N) ids → states (B, N, D); attention_mask is not 0 where a token is real."""
        if input_ids.dim() != 2 or not input_ids.shape[1]:
            raise UserError(
                f"input_ids must be (batch, tokens), at least one token; got shape {tuple(input_ids.shape)}"
            )
        real = self.real_tokens(input_ids, attention_mask)
        x = self.dropout(self.positions(self.embed(input_ids)))
        for layer in self.layers:
            x = layer(x, key_padding=real)
        return BaseModelOutput(last_hidden_state=self.norm(x))

    def real_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Which tokens are no padding, (B, N) boolean."""
        return input_ids.ne(self.padding) if attention_mask is None else attention_mask.bool()


class Decoder(nn.Module):
    """Vectors of the target so far and the encoder's states → states to choose the next tokens by."""

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__()
        self.positions = Positions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(scheme=config.make_scheme(decoder=True), **sizes(config)) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim) if config.norm_first else nn.Identity()

    def forward(
        self,
        x: Tensor,
        encoded: Tensor,
        *,
        key_padding: Tensor | None,
        encoded_padding: Tensor,
        cache: EncoderDecoderCache | None,
    ) -> Tensor:
        x = self.dropout(self.positions(x, 0 if cache is None else cache.get_seq_length()))
        for number, layer in enumerate(self.layers):
            x = layer(
                x,
                encoded if cache is None else encoded_once(layer, encoded, cache, number),
                key_padding=key_padding,
                encoded_padding=encoded_padding,
                cache=None if cache is None else partial(cache.self_attention_cache.update, layer_idx=number),
            )
        states: Tensor = self.norm(x)
        return states


def encoded_once(layer: Any, encoded: Tensor, cache: EncoderDecoderCache, number: int) -> tuple[Tensor, Tensor]:
    """The source's keys and values for a layer, made when the first token is decoded."""
    if not cache.is_updated.get(number):
        cache.cross_attention_cache.update(*layer.project_encoded(encoded), number)
        cache.is_updated[number] = True
    kept: Any = cache.cross_attention_cache.layers[number]
    return kept.keys, kept.values


def sizes(config: HeadwiseTranslatorConfig) -> dict[str, Any]:
    """What layers of both stacks take."""
    return {
        "dim": config.dim,
        "heads": config.heads,
        "head_dim": config.head_dim,
        "feedforward": config.feedforward,
        "dropout": config.dropout,
        "norm_first": config.norm_first,
    }


class HeadwiseForTranslation(PreTrainedModel, GenerationMixin):
    """Source ids in; for each target token a number for each token that may come next out.

    `generate` decodes as for every encoder–decoder of transformers: greedily or by beam search, with a cache, in
    batches. Source texts are padded at the end. Note that its `length_penalty` divides by length ** penalty, not by
    GNMT's ((5 + length) / 6) ** penalty.

    Example:
        >>> import torch
        >>> from headwise.models import HeadwiseForTranslation, HeadwiseTranslatorConfig
        >>> config = HeadwiseTranslatorConfig.preset("small", vocab_size=100, scheme="distance-aware")
        >>> model = HeadwiseForTranslation(config).eval()
        >>> source, target = torch.randint(3, 100, (2, 9)), torch.randint(3, 100, (2, 5))
        >>> model(source, labels=target).logits.shape
        torch.Size([2, 5, 100])
        >>> model.generate(source, num_beams=4, length_penalty=0.6, max_new_tokens=7).shape[0]
        2
    """

    config_class = HeadwiseTranslatorConfig
    config: HeadwiseTranslatorConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True  # `attend` takes torch's kernels wherever they can solve the scheme
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Scheme):
            module.reset_parameters()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        self.encoder.words = value

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Source (B, N) and target ids (B, T) → logits (B, T, vocab_size), and the loss if labels are given.

        Args:
            attention_mask: (B, N), not 0 where a source token is real; by default all but the padding's id.
            decoder_input_ids: the target so far, beginning with `bos_token_id`; with a cache the new tokens only. By
                default labels moved one to the right.
            decoder_attention_mask: (B, all target tokens so far), not 0 where one is real. It is not needed where
                targets are padded at the end: no token looks ahead.
            labels: (B, T), the tokens to come; −100 is none.
            encoder_outputs: the encoder's, where it has been asked already.
            past_key_values: keys and values so far.
            use_cache: return them; by default where they are given.
        """
        if encoder_outputs is None:
            if input_ids is None:
                raise UserError("a translator needs input_ids, or encoder_outputs")
            encoder_outputs = self.encoder(input_ids, attention_mask)
        encoded = encoder_outputs[0]
        real = self.real_source(encoded, input_ids, attention_mask)
        if decoder_input_ids is None:
            if labels is None:
                raise UserError("a translator needs decoder_input_ids or labels: what the target is so far")
            decoder_input_ids = self.shifted(labels)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        states = self.decoder(
            self.encoder.embed(decoder_input_ids),
            encoded,
            key_padding=None if decoder_attention_mask is None else decoder_attention_mask.bool(),
            encoded_padding=real,
            cache=past_key_values,
        )
        logits = F.linear(states, self.encoder.words.weight)
        return Seq2SeqLMOutput(
            loss=None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()),  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            past_key_values=past_key_values,
            encoder_last_hidden_state=encoded,
        )

    def real_source(self, encoded: Tensor, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Which source tokens are no padding, (B, N) boolean."""
        if attention_mask is None and input_ids is None:
            return torch.ones(encoded.shape[:2], dtype=torch.bool, device=encoded.device)
        return self.encoder.real_tokens(input_ids, attention_mask)  # type: ignore[arg-type]

    def shifted(self, labels: Tensor) -> Tensor:
        """What the decoder reads to say labels: the beginning, then all but the last of them."""
        before = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([before, labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)], dim=1)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What transformers' collators call `shifted`."""
        return self.shifted(labels)
