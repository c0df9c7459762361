"""The encoder: word embeddings, then layers whose attention uses a scheme.

B is the batch size, N the number of tokens (padded at the end), D = heads · head_dim the width of the model.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from headwise.attention import EncoderLayer
from headwise.attention.packing import PackedTokens
from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig
from headwise.models.modules import PositionEmbedding, init_weights


class Embeddings(nn.Module):
    """Word embeddings, projected to the width of the model, with segment and position embeddings."""

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__()
        self.config = config
        self.words: Any = nn.Embedding(config.vocab_size, config.word_dim, padding_idx=config.pad_token_id)
        has_model_width = config.word_dim == config.dim
        self.projection = nn.Identity() if has_model_width else nn.Linear(config.word_dim, config.dim)
        self.segments = nn.Embedding(2, config.dim) if config.pair == "joint" else None
        self.positions = PositionEmbedding(config.positions, config.max_tokens, config.dim, config.position_scale)
        self.dropout = nn.Dropout(config.dropout)

    @torch.no_grad()
    def suitable_position_scale(self, word_counts: Tensor) -> float:
        """Return the factor with which sinusoids have the norm, relative to words, of Vaswani et al. (2017).

        There, words are initialized with norm 1 and multiplied with √D, so that sinusoids have 1/√2 of their norm.
        Without a factor sinusoids have norm √(D / 2), whatever the norm of the words is.

        Args:
            word_counts: (vocab_size,), how often each word occurs; norms are averaged over occurrences.
        """
        norms = self.projection(self.words.weight).norm(dim=1)
        weights = word_counts.to(norms)
        mean_norm = float((norms * weights).sum() / weights.sum().clamp(min=1))
        return float(f"{mean_norm / math.sqrt(self.config.dim):.4g}")

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None, packed: PackedTokens | None = None) -> Tensor:
        if packed is not None:
            input_ids = packed.pack(input_ids)
            token_type_ids = None if token_type_ids is None else packed.pack(token_type_ids)
        x = self.projection(self.words(input_ids))
        if self.segments is not None:
            if token_type_ids is None:
                raise UserError("joint pairs need token_type_ids: 0 for the first text, 1 for the second")
            x = x + self.segments(token_type_ids)
        embedded: Tensor = self.dropout(self.positions(x, packed=packed))
        return embedded


def build_layers(config: HeadwiseConfig) -> nn.ModuleList:
    """Build the layers of an encoder."""
    return nn.ModuleList(
        EncoderLayer(
            config.dim,
            config.heads,
            head_dim=config.head_dim,
            scheme=config.build_scheme(),
            feedforward=config.feedforward,
            dropout=config.dropout,
        )
        for _ in range(config.layers)
    )


def scale_positions(
    model: PreTrainedModel, scale: float | None, vocabulary: Mapping[str, int], counts: Mapping[str, int]
) -> str:
    """Set the factor of a new model's sinusoidal position embeddings, and return a description of its positions.

    Args:
        model: A model with `Embeddings`, whose word embeddings have their initial values.
        scale: The factor; None for that of `Embeddings.suitable_position_scale`.
        vocabulary: The id of each word.
        counts: How often words occur.
    """
    embeddings = next(module for module in model.modules() if isinstance(module, Embeddings))
    if not embeddings.positions.sinusoidal:
        return embeddings.positions.name
    if scale is None:
        word_counts = torch.zeros(len(embeddings.words.weight))
        for word, index in vocabulary.items():
            word_counts[index] = counts.get(word, 0)
        scale = embeddings.suitable_position_scale(word_counts)
    embeddings.positions.scale = embeddings.config.position_scale = scale
    return f"sinusoidal × {scale:.3g}"


class HeadwisePreTrainedModel(PreTrainedModel):
    """Base class of headwise models: configuration and initialization."""

    config_class = HeadwiseConfig
    config: HeadwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # `attend` uses SDPA where it supports the scheme
    _no_split_modules = ["EncoderLayer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        init_weights(module, embedding_std=0.1)


class HeadwiseModel(HeadwisePreTrainedModel):
    """An encoder that returns one state per token.

    If `packs_sequences` is set, the texts of a batch are concatenated, so that no padding is computed. The states are
    the same, and 0 for padding.

    Example:
        >>> import torch
        >>> from headwise.models import HeadwiseConfig, HeadwiseModel
        >>> model = HeadwiseModel(HeadwiseConfig(vocab_size=100, word_dim=50, scheme="distance-aware"))
        >>> model(torch.tensor([[5, 8, 13], [21, 34, 0]])).last_hidden_state.shape
        torch.Size([2, 3, 256])
    """

    _gradient_checkpointing_func: Any  # set by `gradient_checkpointing_enable`

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = build_layers(config)
        self.gradient_checkpointing = False
        self.packs_sequences = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        words: nn.Module = self.embeddings.words
        return words

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.words = value

    def padding_mask(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return a boolean mask (B, N) that is True for real tokens."""
        return input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()

    def encode_segments(self, x: Tensor, mask: Tensor, length: int) -> Tensor:
        """Encode states (B, N, D) segment by segment (Dai et al. 2019, section 3.2).

        A layer attends to its inputs of this segment and of the previous one, which get no gradient.
        """
        memories: list[Tensor | None] = [None] * len(self.layers)
        memory_mask, encoded = mask[:, :0], []
        for start in range(0, x.shape[1], length):
            segment, segment_mask = x[:, start : start + length], mask[:, start : start + length]
            key_padding = torch.cat([memory_mask, segment_mask], dim=1)
            for index, layer in enumerate(self.layers):
                inputs = segment
                segment = layer(segment, key_padding=key_padding, memory=memories[index])
                memories[index] = inputs
            memory_mask = segment_mask
            encoded.append(segment)
        return torch.cat(encoded, dim=1)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Encode texts.

        Args:
            input_ids: Word ids (B, N).
            attention_mask: (B, N), nonzero for real tokens; by default all tokens except padding.
            token_type_ids: (B, N), 0 and 1 for the two texts of a joint pair; ignored by other models.
            output_attentions: Also return the weights (B, heads, N, N) of each layer.
            output_hidden_states: Also return the embeddings and the states of each layer.

        Returns:
            The states (B, N, D).
        """
        if input_ids.dim() != 2 or not input_ids.shape[1]:
            raise UserError(
                f"input_ids must have the shape (batch, tokens) with at least one token, got {tuple(input_ids.shape)}"
            )
        return_weights = self.config.output_attentions if output_attentions is None else output_attentions
        return_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states

        mask = self.padding_mask(input_ids, attention_mask)
        packed = PackedTokens.from_mask(mask) if self.packs_sequences and not return_weights else None
        x = self.embeddings(input_ids, token_type_ids, packed)
        if self.config.segment_length is not None:
            if packed is not None or return_weights or return_states:
                raise UserError(
                    "a model with segment_length does not pack texts, and returns no weights or hidden states"
                )
            encoded: Any = self.encode_segments(x, mask, self.config.segment_length)
            return BaseModelOutput(last_hidden_state=encoded)
        states, weights = [x], []
        for layer in self.layers:
            if packed is None:
                run_layer = partial(layer, key_padding=mask)
            else:
                run_layer = partial(layer, cu_seqlens=packed.cu_seqlens)
            if return_weights:
                x, layer_weights = run_layer(x, need_weights=True)
                weights.append(layer_weights)
            elif self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(run_layer, x)
            else:
                x = run_layer(x)
            if return_states:
                states.append(x)
        if packed is not None:
            x, states = packed.unpack(x), [packed.unpack(state) for state in states]
        return BaseModelOutput(
            last_hidden_state=x,
            hidden_states=tuple(states) if return_states else None,
            attentions=tuple(weights) if return_weights else None,
        )
