"""Modules and initial values that the encoder and the translator share."""

import torch
from torch import Tensor, nn

from headwise.attention import Scheme
from headwise.attention.packing import PackedTokens
from headwise.attention.sinusoids import sinusoids
from headwise.errors import UserError


class PositionEmbedding(nn.Module):
    """Adds sinusoidal or learned position embeddings, or none, to the states (B, N, D).

    Args:
        positions: `sinusoidal`, `learned` or `none`.
        max_positions: The number of learned embeddings.
        dim: The width of the states.
        scale: The factor of sinusoidal embeddings, whose norm is √(dim / 2) without it.
    """

    def __init__(self, positions: str, max_positions: int, dim: int, scale: float = 1.0) -> None:
        super().__init__()
        self.name, self.scale = positions, scale
        self.sinusoidal = positions == "sinusoidal"
        self.learned = nn.Embedding(max_positions, dim) if positions == "learned" else None

    def forward(self, x: Tensor, start: int = 0, packed: PackedTokens | None = None) -> Tensor:
        """Add the embeddings of the positions from `start` on; those of each text if several are packed."""
        if packed is not None:
            return x + packed.pack(self(x.new_zeros(1, packed.shape[1], x.shape[2]), start))
        end = start + x.shape[1]
        if self.sinusoidal:
            embeddings = sinusoids(torch.arange(start, end, device=x.device), x.shape[2], x.dtype)
            return x + (embeddings if self.scale == 1.0 else self.scale * embeddings)
        if self.learned is None:
            return x
        if end > self.learned.num_embeddings:
            raise UserError(
                f"the model has {self.learned.num_embeddings} learned positions, got a text of length {end}"
            )
        return x + self.learned.weight[start:end]


def init_weights(module: nn.Module, embedding_std: float | None) -> None:
    """Initialize one module of a headwise model.

    Args:
        module: The module.
        embedding_std: The standard deviation of embeddings; None for 1/√width.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5 if embedding_std is None else embedding_std)
        if module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, Scheme):
        module.reset_parameters()
