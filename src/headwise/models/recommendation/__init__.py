"""News for users: titles and click histories as vectors of one space."""

from headwise.models.recommendation.configuration import RecommenderConfig
from headwise.models.recommendation.model import HeadwiseForRecommendation

__all__ = ["HeadwiseForRecommendation", "RecommenderConfig"]
