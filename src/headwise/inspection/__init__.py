"""Inspection of attention heads: attention maps, head statistics, plots and HTML pages.

Names that require transformers or scikit-learn are imported on first use.
"""

from headwise._extras import require

require("inspect", __name__)

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwise.inspection.page import Page
from headwise.inspection.result_plots import draw_confusion_matrix, draw_reliability
from headwise.inspection.run_plots import draw_boxes, draw_curves, draw_differences, draw_ranks
from headwise.inspection.scheme_plots import draw_coefficients, draw_distances, draw_sigmoids, draw_sorted

if TYPE_CHECKING:
    from headwise.inspection.capture import attention_maps, capture_attention
    from headwise.inspection.head_statistics import HeadStatistics, compute_head_statistics
    from headwise.inspection.inspected_model import InspectedModel
    from headwise.inspection.map_plots import draw_averages, draw_components, draw_maps
    from headwise.inspection.statistics_plots import (
        draw_distance_shares,
        draw_measures,
        draw_received,
        draw_similarity,
    )
    from headwise.inspection.viewer import Viewer, build_viewer

#: The modules of the names that are imported on first use.
LAZY_IMPORTS = {
    "HeadStatistics": "head_statistics",
    "InspectedModel": "inspected_model",
    "Viewer": "viewer",
    "attention_maps": "capture",
    "build_viewer": "viewer",
    "capture_attention": "capture",
    "compute_head_statistics": "head_statistics",
    "draw_averages": "map_plots",
    "draw_components": "map_plots",
    "draw_distance_shares": "statistics_plots",
    "draw_maps": "map_plots",
    "draw_measures": "statistics_plots",
    "draw_received": "statistics_plots",
    "draw_similarity": "statistics_plots",
}

__all__ = [
    "HeadStatistics",
    "InspectedModel",
    "Page",
    "Viewer",
    "attention_maps",
    "build_viewer",
    "capture_attention",
    "compute_head_statistics",
    "draw_averages",
    "draw_boxes",
    "draw_coefficients",
    "draw_components",
    "draw_confusion_matrix",
    "draw_curves",
    "draw_differences",
    "draw_distance_shares",
    "draw_distances",
    "draw_maps",
    "draw_measures",
    "draw_ranks",
    "draw_received",
    "draw_reliability",
    "draw_sigmoids",
    "draw_similarity",
    "draw_sorted",
]


def __getattr__(name: str) -> Any:
    if name in LAZY_IMPORTS:
        return getattr(import_module(f"headwise.inspection.{LAZY_IMPORTS[name]}"), name)
    raise AttributeError(f"module 'headwise.inspection' has no attribute {name!r}")
