"""Pictures, and pages of them. What needs transformers is in `headwise.inspection.reading`."""

from headwise.inspection.boxes import draw_boxes
from headwise.inspection.curves import draw_curves
from headwise.inspection.differences import draw_differences
from headwise.inspection.distances import draw_distances
from headwise.inspection.maps import draw_maps
from headwise.inspection.page import Page
from headwise.inspection.ranks import draw_ranks

__all__ = ["Page", "draw_boxes", "draw_curves", "draw_differences", "draw_distances", "draw_maps", "draw_ranks"]
