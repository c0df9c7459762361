"""One file a guide."""

from headwise.guidance.guides.delimiter import Delimiter
from headwise.guidance.guides.dependency import Dependency, dependency_arcs
from headwise.guidance.guides.disagreement import Disagreement
from headwise.guidance.guides.first import First
from headwise.guidance.guides.map_discrimination import MapDiscrimination
from headwise.guidance.guides.mutual_information import MutualInformation
from headwise.guidance.guides.next import Next
from headwise.guidance.guides.pattern_decorrelation import PatternDecorrelation
from headwise.guidance.guides.period import Period
from headwise.guidance.guides.previous import Previous
from headwise.guidance.guides.rationale import Rationale
from headwise.guidance.guides.word_similarity import WordSimilarity

__all__ = [
    "Delimiter",
    "Dependency",
    "Disagreement",
    "First",
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
