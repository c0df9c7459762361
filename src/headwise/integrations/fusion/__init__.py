"""Fused attention for models with relative positions that users already have; one file per family."""

from headwise.integrations.fusion.family import Family, families
from headwise.integrations.fusion.fuse import (
    fuse_attention,
    fuse_to_record,
    fused_example,
    is_fused,
    unfuse_attention,
)
from headwise.integrations.fusion.report import FusedLayers, FusionReport, fusion_report

__all__ = [
    "Family",
    "FusedLayers",
    "FusionReport",
    "families",
    "fuse_attention",
    "fuse_to_record",
    "fused_example",
    "fusion_report",
    "is_fused",
    "unfuse_attention",
]
