"""A finished run on a click log, ready to be used."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headwise.inspection.inspected_model import InspectedModel
from headwise.models import HeadwiseForRecommendation
from headwise.tasks.mind import News, Split
from headwise.training.core import run_dir
from headwise.training.core.pretrained import loading_errors
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.ranking import Scored, score_by_model
from headwise.training.recommendation.titles import Titles, tokenize_titles
from headwise.training.recommendation.train import in_precision


@dataclass(frozen=True)
class RecommendationModel:
    """A finished run's settings, figures and model.

    Example:
        trained = Trained.load(Path("runs/mind"))
        log = mind.read("MINDsmall")
        for part, scores in trained.scores(log.splits["dev"], trained.titles(log.news)): ...
    """

    settings: RecommendationConfig
    metrics: dict[str, Any]
    model: HeadwiseForRecommendation
    tokenizer: Any

    @classmethod
    def load(cls, run: Path, device: str | torch.device | None = None) -> "RecommendationModel":
        """A run's model from its folder.

        Raises:
            UserError: the folder holds no finished run, or a model that cannot be loaded.
        """
        metrics = run_dir.read_metrics(run)
        with loading_errors(run):
            model: Any = HeadwiseForRecommendation.from_pretrained(run, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(run)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        settings = RecommendationConfig.load(run / run_dir.CONFIG)
        return cls(settings, metrics, model.to(device).eval(), tokenizer)

    def titles(self, news: News) -> Titles:
        """All titles of a log as the model takes them."""
        return tokenize_titles(self.tokenizer, news.data, self.settings.title_length)

    def scores(self, split: Split, titles: Titles) -> Scored:
        """The scores of all candidates, in the log's order, some impressions at a time."""
        precision = in_precision(self.settings, self.model.device.type)
        return score_by_model(self.model, split, titles, history=self.settings.history, precision=precision)


def open_inspected(run: Path, name: str) -> InspectedModel:
    """A run to look into: what reads its titles."""
    trained = RecommendationModel.load(run)
    return InspectedModel(
        name=name,
        model=trained.model.titles.encoder,
        tokenizer=trained.tokenizer,
        max_length=trained.settings.title_length,
        reads=1,
        part_of=trained.model,
    )
