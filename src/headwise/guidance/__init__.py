"""Training with guides: a context manager, a transformers Trainer, and a loss for sentence-transformers."""

from headwise._extras import require

require("hf", __name__)

from headwise.guidance.cross_encoder import GuidedLoss
from headwise.guidance.guided import Guided, guiding
from headwise.guidance.trainer import GuidedTrainer

__all__ = ["Guided", "GuidedLoss", "GuidedTrainer", "guiding"]
