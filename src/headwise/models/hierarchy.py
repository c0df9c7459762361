"""The sentence level of hierarchical models for long texts (Wu et al. 2021, section 4.1)."""

from torch import Tensor, nn

from headwise.attention.packing import PackedTokens
from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig
from headwise.models.encoder import build_layers
from headwise.models.modules import PositionEmbedding
from headwise.models.pooling import AdditivePooling


class DocumentEncoder(nn.Module):
    """Encodes sentence vectors to a document vector: layers with the scheme, then additive pooling."""

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__()
        assert config.hierarchy is not None
        self.positions = PositionEmbedding(config.positions, config.hierarchy[1], config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = build_layers(config)
        self.pooling = AdditivePooling(config.dim)
        self.packs_sequences = False  # see `HeadwiseModel`

    def forward(self, sentences: Tensor, mask: Tensor) -> Tensor:
        """Encode sentence vectors (B, S, D) to (B, D); the mask (B, S) is True for sentences that are not empty."""
        x = self.dropout(self.positions(sentences))
        packed = PackedTokens.from_mask(mask) if self.packs_sequences else None
        x = x if packed is None else packed.pack(x)
        for layer in self.layers:
            x = layer(x, key_padding=mask) if packed is None else layer(x, cu_seqlens=packed.cu_seqlens)
        x = x if packed is None else packed.unpack(x)
        document: Tensor = self.pooling(x, mask)
        return document


def flatten_sentences(name: str, ids: Tensor) -> Tensor:
    """Flatten (B, sentences, words) to (B · sentences, words)."""
    if ids.dim() != 3:
        raise UserError(f"in a hierarchy, {name} must have the shape (batch, sentences, words), got {tuple(ids.shape)}")
    return ids.flatten(0, 1)
