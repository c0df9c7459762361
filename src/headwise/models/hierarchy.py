"""From sentences to a document, for long texts (Wu et al. 2021, section 4.1, on Amazon's reviews)."""

from torch import Tensor, nn

from headwise.errors import UserError
from headwise.models.configuration import HeadwiseConfig
from headwise.models.encoder import Positions, make_layers
from headwise.models.pooling import AdditivePooling


class Document(nn.Module):
    """Vectors of sentences in, one of the document out: layers by the scheme, then additive pooling."""

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__()
        assert config.hierarchy is not None
        self.positions = Positions(config, longest=config.hierarchy[1])
        self.dropout = nn.Dropout(config.dropout)
        self.layers = make_layers(config)
        self.pooling = AdditivePooling(config.dim)

    def forward(self, sentences: Tensor, real: Tensor) -> Tensor:
        """(B, sentences, dim), and which of them are not empty → (B, dim)."""
        x = self.dropout(self.positions(sentences))
        for layer in self.layers:
            x = layer(x, key_padding=real)
        document: Tensor = self.pooling(x, real)
        return document


def flattened(name: str, ids: Tensor) -> Tensor:
    """(B, sentences, words) → (B · sentences, words)."""
    if ids.dim() != 3:
        raise UserError(f"a hierarchy's {name} must be (batch, sentences, words), got shape {tuple(ids.shape)}")
    return ids.flatten(0, 1)
