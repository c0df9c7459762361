"""Pictures."""

from headwise.inspection.maps import draw_maps

__all__ = ["draw_maps"]
