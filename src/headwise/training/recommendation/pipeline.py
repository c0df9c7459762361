"""The recommendation pipeline."""

from pathlib import Path
from typing import Any

from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.evaluate import evaluate
from headwise.training.recommendation.inference import open_inspected
from headwise.training.recommendation.predict import predict
from headwise.training.recommendation.train import run_training


class RecommendationPipeline:
    """To be replaced by a subclass of `headwise.training.core.pipeline.Pipeline`."""

    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    open_inspected = staticmethod(open_inspected)

    def __init__(self, config: RecommendationConfig) -> None:
        self.config = config

    def run(self, out_dir: Path, *, resume: bool) -> dict[str, Any]:
        return run_training(self.config, out_dir, resume=resume)
