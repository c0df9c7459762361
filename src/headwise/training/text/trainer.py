"""The Trainer of the text pipeline."""

from headwise.guidance import GuidedTrainer
from headwise.training.core.trainer import LengthGroupedTrainer


class TextTrainer(LengthGroupedTrainer, GuidedTrainer):
    """A `LengthGroupedTrainer` with guides."""
