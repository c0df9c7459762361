"""What heads are pushed towards, and our attention in Hugging Face models."""

from headwise.guidance.attaching import NotThroughTheInterface
from headwise.guidance.cross_encoder import GuidedLoss
from headwise.guidance.guide import Guide, Observed
from headwise.guidance.guided import Guided, guiding
from headwise.guidance.guides import (
    Delimiter,
    Dependency,
    Disagreement,
    First,
    MapDiscrimination,
    MutualInformation,
    Next,
    PatternDecorrelation,
    Period,
    Previous,
    Rationale,
    WordSimilarity,
    dependency_arcs,
)
from headwise.guidance.retrofit import (
    from_pretrained,
    load_adapter,
    remove_scheme,
    retrofit,
    save_adapter,
    scheme_parameters,
)
from headwise.guidance.trainer import GuidedTrainer

__all__ = [
    "Delimiter",
    "Dependency",
    "Disagreement",
    "First",
    "Guide",
    "Guided",
    "GuidedLoss",
    "GuidedTrainer",
    "MapDiscrimination",
    "MutualInformation",
    "Next",
    "NotThroughTheInterface",
    "Observed",
    "PatternDecorrelation",
    "Period",
    "Previous",
    "Rationale",
    "WordSimilarity",
    "dependency_arcs",
    "from_pretrained",
    "guiding",
    "load_adapter",
    "remove_scheme",
    "retrofit",
    "save_adapter",
    "scheme_parameters",
]
