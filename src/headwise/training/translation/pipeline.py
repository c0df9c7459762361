"""The translation pipeline."""

from pathlib import Path
from typing import Any

from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.evaluate import evaluate
from headwise.training.translation.inference import open_inspected
from headwise.training.translation.predict import predict
from headwise.training.translation.train import run_training


class TranslationPipeline:
    """To be replaced by a subclass of `headwise.training.core.pipeline.Pipeline`."""

    evaluate = staticmethod(evaluate)
    predict = staticmethod(predict)
    open_inspected = staticmethod(open_inspected)

    def __init__(self, config: TranslationConfig) -> None:
        self.config = config

    def run(self, out_dir: Path, *, resume: bool) -> dict[str, Any]:
        return run_training(self.config, out_dir, resume=resume)
