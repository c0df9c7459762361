"""A recommender of news: titles → vectors, clicked news → a user's vector, and their dot product.

Wu, Wu and Huang 2021, DA-Transformer, section 4.1, whose model for MIND is NRMS (Wu et al. 2019, EMNLP) with
Transformers: words of a title attend to each other and are pooled; clicked news attend to each other and are pooled.
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
from headwise.models.encoder import HeadwiseModel, HeadwisePreTrainedModel, Positions, make_layers
from headwise.models.pooling import AdditivePooling
from headwise.models.recommendation.configuration import RecommenderConfig
from headwise.models.recommendation.pooling import RecentPooling, make_user_pooling


class Titles(nn.Module):
    """Words in, a vector of each title out."""

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        titles: Any = config.titles
        ours = isinstance(titles, HeadwiseConfig)
        self.encoder: Any = HeadwiseModel(titles) if ours else AutoModel.from_config(titles)
        width = titles.hidden_size
        self.pooling = AdditivePooling(width)
        self.projection = nn.Identity() if width == config.dim else nn.Linear(width, config.dim)

    def forward(self, input_ids: Tensor, real: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=real).last_hidden_state
        vectors: Tensor = self.projection(self.pooling(states, real.bool()))
        return vectors


class Users(nn.Module):
    """Vectors of clicked news in, the latest last, a user out; one who clicked nothing is a learned vector."""

    def __init__(self, config: RecommenderConfig) -> None:
        super().__init__()
        level = config.level()
        self.positions = Positions(level, longest=config.history)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = make_layers(level)
        self.causal = config.causal
        self.pooling = make_user_pooling(config.pooling, config.dim)
        self.newcomer = nn.Parameter(torch.zeros(config.dim))

    def forward(self, clicked: Tensor, real: Tensor) -> Tensor:
        x = self.dropout(self.positions(clicked))
        for layer in self.layers:
            x = layer(x, key_padding=real, causal=self.causal)
        pooled: Tensor = self.pooling(x, real)
        return torch.where(real.any(dim=-1, keepdim=True), pooled, self.newcomer.to(pooled.dtype))


class HeadwiseForRecommendation(HeadwisePreTrainedModel):
    """Titles, click histories and candidates in; a score for each candidate out.

    Every title of a batch is given once: histories and candidates are rows of `input_ids`. `news` and `users` are the
    two halves by themselves: with them each news and each user is encoded once, however many pairs there are.

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
        self.titles = Titles(config)
        self.clicks = Users(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        found: nn.Module = self.titles.encoder.get_input_embeddings()
        return found

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.titles.encoder.set_input_embeddings(value)

    def news(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Titles (news, words) → vectors (news, dim)."""
        real = input_ids != self.config.titles.pad_token_id if attention_mask is None else attention_mask
        vectors: Tensor = self.titles(input_ids, real.long())
        return vectors

    def users(self, clicked: Tensor, real: Tensor) -> Tensor:
        """Vectors of clicked news (B, history, dim), the latest last, and which there are (B, history) → (B, dim).

        Divided by √dim, so that dot products with news begin small enough for a softmax over them to learn.
        """
        vectors: Tensor = self.clicks(clicked, real) / math.sqrt(self.config.dim)
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
        """Scores of candidates (C, candidates), and the loss, a softmax over them, if labels are given.

        Args:
            input_ids: (news, words), each title once.
            attention_mask: as input_ids, not 0 where a token is real; by default all but the padding's id.
            history: (B, most clicks), rows of input_ids, the latest last, then −1 where there are no more.
            candidates: (C, most candidates), rows of input_ids, −1 where there are no more: those score lowest.
            user: (C,), the row of history that each row of candidates was shown to; by default they go together.
            labels: (C,), the place of the candidate that was clicked.
        """
        news = self.news(input_ids, attention_mask)
        users = self.users(F.embedding(history.clamp(min=0), news), history >= 0)
        shown = F.embedding(candidates.clamp(min=0), news)
        users = users if user is None else F.embedding(user, users)
        logits: Any = (shown @ users[..., None]).squeeze(-1).float()
        logits = logits.masked_fill(candidates < 0, torch.finfo(logits.dtype).min)
        loss: Any = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Users):
            nn.init.zeros_(module.newcomer)
        elif isinstance(module, RecentPooling):
            nn.init.zeros_(module.slope)
