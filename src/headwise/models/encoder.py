"""The encoder, from word ids to states: embeddings, then layers that attend by a scheme.

B texts of N tokens, padded at the end; D is the model's width, heads · head_dim.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from headwise.attention import EncoderLayer, Scheme
from headwise.attention.sinusoids import sinusoids
from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig


class Positions(nn.Module):
    """Adds to each state where it stands: sinusoids, learned vectors, or nothing."""

    def __init__(self, config: HeadwiseConfig, longest: int) -> None:
        super().__init__()
        self.sinusoidal = config.positions == "sinusoidal"
        self.learned = nn.Embedding(longest, config.dim) if config.positions == "learned" else None

    def forward(self, x: Tensor) -> Tensor:
        length, dim = x.shape[1:]
        if self.sinusoidal:
            return x + sinusoids(torch.arange(length, device=x.device), dim, x.dtype)
        if self.learned is None:
            return x
        if length > self.learned.num_embeddings:
            raise UserError(f"learned positions end at {self.learned.num_embeddings}, got a text of length {length}")
        return x + self.learned.weight[:length]


class Embeddings(nn.Module):
    """Word vectors at the model's width; which text of a joint pair they belong to; positions."""

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__()
        self.words: nn.Module = nn.Embedding(config.vocab_size, config.word_dim, padding_idx=config.pad_token_id)
        same = config.word_dim == config.dim
        self.projection = nn.Identity() if same else nn.Linear(config.word_dim, config.dim)
        self.segments = nn.Embedding(2, config.dim) if config.pair == "joint" else None
        self.positions = Positions(config, config.max_tokens)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        x = self.projection(self.words(input_ids))
        if self.segments is not None:
            if token_type_ids is None:
                raise UserError("a joint pair needs token_type_ids: 0 for the first text, 1 for the second")
            x = x + self.segments(token_type_ids)
        embedded: Tensor = self.dropout(self.positions(x))
        return embedded


def make_layers(config: HeadwiseConfig) -> nn.ModuleList:
    return nn.ModuleList(
        EncoderLayer(
            config.dim,
            config.heads,
            head_dim=config.head_dim,
            scheme=config.make_scheme(),
            feedforward=config.feedforward,
            dropout=config.dropout,
        )
        for _ in range(config.layers)
    )


class HeadwisePreTrainedModel(PreTrainedModel):
    """What all headwise models share: their configuration, and how they start."""

    config_class = HeadwiseConfig
    config: HeadwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # `attend` takes torch's kernels wherever they can solve the scheme
    _no_split_modules = ["EncoderLayer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Scheme):
            module.reset_parameters()


class HeadwiseModel(HeadwisePreTrainedModel):
    """Words in, a state for each of them out.

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
        self.layers = make_layers(config)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.words

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.words = value

    def real_tokens(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Which tokens are no padding, (B, N) boolean."""
        return input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()

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
        """(B, N) word ids → states (B, N, D).

        Args:
            attention_mask: (B, N), not 0 where a token is real; by default all but the padding's id.
            token_type_ids: (B, N), 0 and 1 for the two texts of a joint pair; other models ignore them.
            output_attentions: also return each layer's weights (B, heads, N, N); they cost that much memory.
            output_hidden_states: also return the embeddings and each layer's states.
        """
        if input_ids.dim() != 2 or not input_ids.shape[1]:
            raise UserError(
                f"input_ids must be (batch, tokens), at least one token; got shape {tuple(input_ids.shape)}"
            )
        wants_weights = self.config.output_attentions if output_attentions is None else output_attentions
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states

        real = self.real_tokens(input_ids, attention_mask)
        x = self.embeddings(input_ids, token_type_ids)
        states, weights = [x], []
        for layer in self.layers:
            attend = partial(layer, key_padding=real)
            if wants_weights:
                x, layer_weights = attend(x, need_weights=True)
                weights.append(layer_weights)
            elif self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(attend, x)
            else:
                x = attend(x)
            if wants_states:
                states.append(x)
        return BaseModelOutput(
            last_hidden_state=x,
            hidden_states=tuple(states) if wants_states else None,
            attentions=tuple(weights) if wants_weights else None,
        )
