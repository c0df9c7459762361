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
    from headwise.inspection.attention_maps import attention_maps
    from headwise.inspection.capture import watch
    from headwise.inspection.comparison import draw_averages, draw_components
    from headwise.inspection.head_statistics import HeadStatistics, compute_head_statistics
    from headwise.inspection.heads import draw_measures, draw_received, draw_similarity
    from headwise.inspection.inspected_model import InspectedModel
    from headwise.inspection.viewer import Viewer, build_viewer

#: What takes seconds to import, and where it is.
LATER = {
    "HeadStatistics": "head_statistics",
    "InspectedModel": "inspected_model",
    "Viewer": "viewer",
    "attention_maps": "attention_maps",
    "draw_averages": "comparison",
    "draw_components": "comparison",
    "draw_measures": "heads",
    "draw_received": "heads",
    "draw_similarity": "heads",
    "build_viewer": "viewer",
    "compute_head_statistics": "head_statistics",
    "watch": "capture",
}

__all__ = [
    "HeadStatistics",
    "InspectedModel",
    "Page",
    "Viewer",
    "attention_maps",
    "build_viewer",
    "compute_head_statistics",
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
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(import_module(f"headwise.inspection.{LATER[name]}"), name)
    raise AttributeError(f"module 'headwise.inspection' has no attribute {name!r}")
