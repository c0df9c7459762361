"""The recommender of a finished run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from headwise.inspection.inspected_model import InspectedModel
from headwise.models import HeadwiseForRecommendation
from headwise.tasks.mind import News, Split
from headwise.training.core import run_dir
from headwise.training.core.environment import autocast, get_device
from headwise.training.core.pretrained import check_finite, load_pretrained, loading_errors, running_errors
from headwise.training.jobs import Progress
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.ranking import ScoredImpressions, encode_news, score_by_vectors
from headwise.training.recommendation.titles import Titles, tokenize_titles


@dataclass(frozen=True)
class RecommendationModel:
    """The configuration, metrics and model of a finished run.

    Example:
        recommender = RecommendationModel.load(Path("runs/mind"))
        log = mind.read("MINDsmall")
        titles = recommender.tokenize(log.news)
        news_vectors = recommender.encode_news(titles)
        for part, scores in recommender.score(log.splits["dev"], news_vectors): ...
    """

    config: RecommendationConfig
    metrics: dict[str, Any]
    model: HeadwiseForRecommendation
    tokenizer: Any

    @classmethod
    def load(cls, run: Path, device: str | torch.device | None = None) -> "RecommendationModel":
        """Load the recommender of a run.

        Raises:
            UserError: the directory contains no finished run, or its model cannot be loaded.
        """
        metrics = run_dir.read_metrics(run)
        with loading_errors(run):
            model: Any = load_pretrained(HeadwiseForRecommendation, run, complete=True, use_safetensors=True)
            tokenizer = load_pretrained(AutoTokenizer, run)
        config = RecommendationConfig.load(run / run_dir.CONFIG)
        return cls(config, metrics, model.to(device or get_device()).eval(), tokenizer)

    def tokenize(self, news: News) -> Titles:
        """Tokenize all titles of a log."""
        with running_errors(self.model):
            return tokenize_titles(self.tokenizer, news.data, self.config.title_length)

    def encode_news(self, titles: Titles) -> Tensor:
        """Return the vectors of all news, (news, width)."""
        with running_errors(self.model), torch.inference_mode(), self.precision():
            return encode_news(self.model, titles)

    def score(self, split: Split, news_vectors: Tensor, progress: Progress = lambda _: None) -> ScoredImpressions:
        """Score all candidates in the log's order, some impressions at a time.

        Args:
            split: the impressions.
            news_vectors: (news, width), of `encode_news`.
            progress: takes the number of impressions that were scored since its last call.
        """
        with running_errors(self.model):
            for part, scores in score_by_vectors(
                split, news_vectors, self.model.users, history=self.config.history, precision=self.precision
            ):
                check_finite(torch.as_tensor(scores), self.model)
                yield part, scores
                progress(len(part.offsets) - 1)

    def precision(self) -> Any:
        """Return the context of the precision that the model was trained with."""
        return autocast(self.config, self.model.device.type)


def open_inspected(run: Path, name: str) -> InspectedModel:
    """Return the title encoder of a run for inspection."""
    recommender = RecommendationModel.load(run)
    return InspectedModel(
        name=name,
        model=recommender.model.titles.encoder,
        tokenizer=recommender.tokenizer,
        max_length=recommender.config.title_length,
        reads=1,
        part_of=recommender.model,
    )
