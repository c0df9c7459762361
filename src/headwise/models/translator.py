"""A translation model: an encoder and a decoder whose self-attention uses a scheme (Shaw et al. 2018).

B is the batch size, N and T the numbers of source and target tokens, D = heads · head_dim the width of the model.
Source embeddings, target embeddings and output weights are shared.
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

from headwise.attention import DecoderLayer, EncoderLayer
from headwise.errors import UserError
from headwise.models.modules import PositionEmbedding, init_weights
from headwise.models.translator_configuration import HeadwiseTranslatorConfig


class Encoder(nn.Module):
    """The encoder. It holds the embeddings, which the decoder uses, too."""

    main_input_name = "input_ids"  # for `generate`

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__()
        self.pad_token_id = config.pad_token_id
        self.words = nn.Embedding(config.vocab_size, config.dim, padding_idx=config.pad_token_id)
        self.positions = PositionEmbedding(config.positions, config.max_tokens, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(scheme=config.build_scheme(decoder=False), **layer_options(config))
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim) if config.norm_first else nn.Identity()

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (B, N, D) of ids (B, N), scaled by √D as in Vaswani et al. (2017)."""
        vectors: Tensor = self.words(ids) * math.sqrt(self.words.embedding_dim)
        return vectors

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> BaseModelOutput:
        """Encode ids (B, N) to states (B, N, D); attention_mask is nonzero for real tokens."""
        if input_ids.dim() != 2 or not input_ids.shape[1]:
            raise UserError(
                f"input_ids must have the shape (batch, tokens) with at least one token, got {tuple(input_ids.shape)}"
            )
        mask = self.padding_mask(input_ids, attention_mask)
        x = self.dropout(self.positions(self.embed(input_ids)))
        for layer in self.layers:
            x = layer(x, key_padding=mask)
        return BaseModelOutput(last_hidden_state=self.norm(x))

    def padding_mask(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return a boolean mask (B, N) that is True for real tokens."""
        return input_ids.ne(self.pad_token_id) if attention_mask is None else attention_mask.bool()


class Decoder(nn.Module):
    """The decoder: embeddings of the target so far and encoder states in, states out."""

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__()
        self.positions = PositionEmbedding(config.positions, config.max_tokens, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(scheme=config.build_scheme(decoder=True), **layer_options(config))
            for _ in range(config.layers)
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
        for index, layer in enumerate(self.layers):
            x = layer(
                x,
                encoded if cache is None else cached_projections(layer, encoded, cache, index),
                key_padding=key_padding,
                encoded_padding=encoded_padding,
                cache=None if cache is None else partial(cache.self_attention_cache.update, layer_idx=index),
            )
        states: Tensor = self.norm(x)
        return states


def cached_projections(layer: Any, encoded: Tensor, cache: EncoderDecoderCache, index: int) -> tuple[Tensor, Tensor]:
    """Return the source keys and values of a layer, which are computed when the first token is decoded."""
    if not cache.is_updated.get(index):
        cache.cross_attention_cache.update(*layer.project_encoded(encoded), index)
        cache.is_updated[index] = True
    cached: Any = cache.cross_attention_cache.layers[index]
    return cached.keys, cached.values


def layer_options(config: HeadwiseTranslatorConfig) -> dict[str, Any]:
    """Return the arguments of encoder and decoder layers."""
    return {
        "dim": config.dim,
        "heads": config.heads,
        "head_dim": config.head_dim,
        "feedforward": config.feedforward,
        "dropout": config.dropout,
        "norm_first": config.norm_first,
    }


class HeadwiseForTranslation(PreTrainedModel, GenerationMixin):
    """An encoder–decoder model for translation.

    `generate` works as for other encoder–decoder models: greedy or beam search, with a cache, in batches. Source texts
    are padded at the end. `length_penalty` divides by length ** penalty, not by GNMT's ((5 + length) / 6) ** penalty.

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
    _supports_sdpa = True  # `attend` uses SDPA where it supports the scheme
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]  # noqa: RUF012

    def __init__(self, config: HeadwiseTranslatorConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module, embedding_std=None)

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
        """Compute logits (B, T, vocab_size), and the loss if labels are given.

        Args:
            input_ids: Source ids (B, N).
            attention_mask: (B, N), nonzero for real source tokens; by default all tokens except padding.
            decoder_input_ids: Target ids (B, T) so far, starting with `bos_token_id`; with a cache only the new ones
                (default: the labels, shifted to the right).
            decoder_attention_mask: (B, target tokens so far), nonzero for real tokens. Not needed if targets are padded
                at the end, because attention is causal.
            labels: Target tokens (B, T); −100 is ignored.
            encoder_outputs: Outputs of the encoder, if they are known.
            past_key_values: The cache.
            use_cache: Return the cache; by default if one is given.
        """
        if encoder_outputs is None:
            if input_ids is None:
                raise UserError("input_ids or encoder_outputs are required")
            encoder_outputs = self.encoder(input_ids, attention_mask)
        encoded = encoder_outputs[0]
        mask = self.source_mask(encoded, input_ids, attention_mask)
        if decoder_input_ids is None:
            if labels is None:
                raise UserError("decoder_input_ids or labels are required")
            decoder_input_ids = self.shift_right(labels)
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        states = self.decoder(
            self.encoder.embed(decoder_input_ids),
            encoded,
            key_padding=None if decoder_attention_mask is None else decoder_attention_mask.bool(),
            encoded_padding=mask,
            cache=past_key_values,
        )
        logits = F.linear(states, self.encoder.words.weight)
        return Seq2SeqLMOutput(
            loss=None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()),  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            past_key_values=past_key_values,
            encoder_last_hidden_state=encoded,
        )

    def source_mask(self, encoded: Tensor, input_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Return a boolean mask (B, N) that is True for real source tokens."""
        if attention_mask is None and input_ids is None:
            return torch.ones(encoded.shape[:2], dtype=torch.bool, device=encoded.device)
        return self.encoder.padding_mask(input_ids, attention_mask)  # type: ignore[arg-type]

    def shift_right(self, labels: Tensor) -> Tensor:
        """Return the decoder's inputs for labels: the start token, then all labels but the last."""
        start = labels.new_full((len(labels), 1), self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == -100, self.config.pad_token_id)], dim=1)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder's inputs; the name that transformers' collators use."""
        return self.shift_right(labels)
