"""The news recommender: the score of a candidate is the dot product of its title vector and the user vector.

The model of Wu, Wu and Huang (2021, DA-Transformer, section 4.1) for MIND is NRMS (Wu et al. 2019, EMNLP) with
Transformers: the words of a title attend to each other and are pooled, and so are the clicked news of a user.

Additive pooling ignores the order of the news. `recent` pooling adds a preference for the latest clicks:

    α = softmax_i(qᵀ tanh(W h_i + b) − s · age_i),   where the age of the latest click is 0 and s is learned
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from headwise.models.configuration import HeadwiseConfig
from headwise.models.encoder import HeadwiseModel, HeadwisePreTrainedModel, build_layers
from headwise.models.modules import PositionEmbedding
from headwise.models.pooling import AdditivePooling
from headwise.models.recommender_configuration import RecommenderConfig, UserPooling


class TitleEncoder(nn.Module):
    """Encodes titles to vectors."""

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        titles: Any = config.titles
        is_headwise = isinstance(titles, HeadwiseConfig)
        self.encoder: Any = HeadwiseModel(titles) if is_headwise else AutoModel.from_config(titles)
        width = titles.hidden_size
        self.pooling = AdditivePooling(width)
        self.projection = nn.Identity() if width == config.dim else nn.Linear(width, config.dim)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        vectors: Tensor = self.projection(self.pooling(states, mask.bool()))
        return vectors


class RecentPooling(AdditivePooling):
    """Additive pooling with a learned preference for the latest clicks, initially 0."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.slope = nn.Parameter(torch.zeros(()))

    def scores(self, states: Tensor, mask: Tensor) -> Tensor:
        age = mask.sum(dim=-1, keepdim=True) - 1 - torch.arange(mask.shape[-1], device=mask.device)
        return super().scores(states, mask) - self.slope * age


class LastPooling(nn.Module):
    """The state of the latest click; 0 for an empty history."""

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        last = (mask.sum(dim=-1) - 1).clamp(min=0)
        latest = states[torch.arange(len(states), device=states.device), last]
        return latest * mask.any(dim=-1, keepdim=True)


def build_user_pooling(pooling: UserPooling, dim: int) -> nn.Module:
    """Build the pooling of the user encoder."""
    if pooling == "last":
        return LastPooling()
    return RecentPooling(dim) if pooling == "recent" else AdditivePooling(dim)


class UserEncoder(nn.Module):
    """Encodes the vectors of clicked news, the latest last, to a user vector; without clicks it is a parameter."""

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        encoder_config = config.user_encoder_config()
        self.positions = PositionEmbedding(encoder_config.positions, config.history, config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = build_layers(encoder_config)
        self.causal = config.causal
        self.pooling = build_user_pooling(config.pooling, config.dim)
        self.newcomer = nn.Parameter(torch.zeros(config.dim))

    def forward(self, clicked: Tensor, mask: Tensor) -> Tensor:
        x = self.dropout(self.positions(clicked))
        for layer in self.layers:
            x = layer(x, key_padding=mask, causal=self.causal)
        pooled: Tensor = self.pooling(x, mask)
        return torch.where(mask.any(dim=-1, keepdim=True), pooled, self.newcomer.to(pooled.dtype))


class HeadwiseForRecommendation(HeadwisePreTrainedModel):
    """Scores candidate news for users.

    Each title of a batch is given once; histories and candidates are row indices of `input_ids`. `news` and `users`
    encode news and users separately, so that each is encoded once for any number of pairs.

    Example:
        >>> import torch
        >>> from headwise.models import HeadwiseConfig, HeadwiseForRecommendation, RecommenderConfig
        >>> words = HeadwiseConfig(vocab_size=100, word_dim=50)
        >>> model = HeadwiseForRecommendation(RecommenderConfig(titles=words, scheme="rpr"))
        >>> titles = torch.randint(1, 100, (4, 9))
        >>> history, candidates = torch.tensor([[0, 1, 2], [3, -1, -1]]), torch.tensor([[2, 3], [0, 1]])
        >>> output = model(titles, history=history, candidates=candidates, labels=torch.tensor([0, 0]))
        >>> output.logits.shape, output.loss.shape
        (torch.Size([2, 2]), torch.Size([]))
    """

    config_class = RecommenderConfig  # type: ignore[assignment]
    config: RecommenderConfig  # type: ignore[assignment]
    supports_gradient_checkpointing = False

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__(config)
        self.titles = TitleEncoder(config)
        self.clicks = UserEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        embeddings: nn.Module = self.titles.encoder.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.titles.encoder.set_input_embeddings(value)

    def news(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Encode titles (news, words) to vectors (news, D)."""
        mask = input_ids != self.config.titles.pad_token_id if attention_mask is None else attention_mask
        vectors: Tensor = self.titles(input_ids, mask.long())
        return vectors

    def users(self, clicked: Tensor, mask: Tensor) -> Tensor:
        """Encode the vectors of clicked news (B, history, D), the latest last, to user vectors (B, D).

        The mask (B, history) is True for clicks. User vectors are divided by √D, so that the initial dot products are
        small enough for the softmax to learn.
        """
        vectors: Tensor = self.clicks(clicked, mask) / math.sqrt(self.config.dim)
        return vectors

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        history: Tensor,
        candidates: Tensor,
        user: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Score candidates, and compute the loss, a softmax over the candidates, if labels are given.

        Args:
            input_ids: Word ids (news, words), each title once.
            attention_mask: Nonzero for real tokens; by default all tokens except padding.
            history: (B, clicks), row indices of input_ids, the latest last, padded with −1 at the end.
            candidates: (C, candidates), row indices of input_ids, padded with −1; padding gets the lowest score.
            user: (C,), the row of `history` that each row of candidates belongs to (default: the same row).
            labels: (C,), the index of the clicked candidate.

        Returns:
            The scores (C, candidates) as logits.
        """
        news = self.news(input_ids, attention_mask)
        users = self.users(F.embedding(history.clamp(min=0), news), history >= 0)
        candidate_vectors = F.embedding(candidates.clamp(min=0), news)
        users = users if user is None else F.embedding(user, users)
        logits: Any = (candidate_vectors @ users[..., None]).squeeze(-1).float()
        logits = logits.masked_fill(candidates < 0, torch.finfo(logits.dtype).min)
        loss: Any = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, UserEncoder):
            nn.init.zeros_(module.newcomer)
        elif isinstance(module, RecentPooling):
            nn.init.zeros_(module.slope)
