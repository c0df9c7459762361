"""Guides: terms of the training loss that regularize attention heads."""

from headwise._extras import require

require("hf", __name__)

from headwise.guides.dependency import Dependency, dependency_arcs
from headwise.guides.disagreement import Disagreement
from headwise.guides.guide import ForwardRecord, Guide
from headwise.guides.map_discrimination import MapDiscrimination
from headwise.guides.mutual_information import MutualInformation
from headwise.guides.pattern_decorrelation import PatternDecorrelation
from headwise.guides.patterns import Delimiter, First, Next, Period, Previous
from headwise.guides.rationale import Rationale
from headwise.guides.word_similarity import WordSimilarity

__all__ = [
    "Delimiter",
    "Dependency",
    "Disagreement",
    "First",
    "ForwardRecord",
    "Guide",
    "MapDiscrimination",
    "MutualInformation",
    "Next",
    "PatternDecorrelation",
    "Period",
    "Previous",
    "Rationale",
    "WordSimilarity",
    "dependency_arcs",
]
