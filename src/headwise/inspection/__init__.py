"""Pictures, and pages of them. What needs transformers is imported when it is asked for first."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.inspection.boxes import draw_boxes
from headwise.inspection.curves import draw_curves
from headwise.inspection.differences import draw_differences
from headwise.inspection.distances import draw_distances
from headwise.inspection.learned import draw_coefficients, draw_sigmoids, draw_sorted
from headwise.inspection.maps import draw_maps
from headwise.inspection.page import Page
from headwise.inspection.ranks import draw_ranks

if TYPE_CHECKING:
    from headwise.inspection.collecting import Statistics, statistics
    from headwise.inspection.comparison import draw_averages, draw_components
    from headwise.inspection.heads import draw_measures, draw_received, draw_similarity
    from headwise.inspection.reading import attention_maps
    from headwise.inspection.subject import Subject
    from headwise.inspection.viewer import Viewer, look
    from headwise.inspection.watching import watch

#: What takes seconds to import, and where it is.
LATER = {
    "Statistics": "collecting",
    "Subject": "subject",
    "Viewer": "viewer",
    "attention_maps": "reading",
    "draw_averages": "comparison",
    "draw_components": "comparison",
    "draw_measures": "heads",
    "draw_received": "heads",
    "draw_similarity": "heads",
    "look": "viewer",
    "statistics": "collecting",
    "watch": "watching",
}

__all__ = [
    "Page",
    "Statistics",
    "Subject",
    "Viewer",
    "attention_maps",
    "draw_averages",
    "draw_boxes",
    "draw_coefficients",
    "draw_components",
    "draw_curves",
    "draw_differences",
    "draw_distances",
    "draw_maps",
    "draw_measures",
    "draw_ranks",
    "draw_received",
    "draw_sigmoids",
    "draw_similarity",
    "draw_sorted",
    "look",
    "statistics",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(f"headwise.inspection.{LATER[name]}"), name)
    raise AttributeError(f"module 'headwise.inspection' has no attribute {name!r}")
