"""Figures that need no training: the learnable sigmoid and its coefficients (figures 1 and 2 of Wu et al. 2021)."""

from collections.abc import Sequence

import torch

from headwise.attention import DistanceAware
from headwise.inspection import draw_coefficients, draw_sigmoids
from headwise.studies.report import CaptionedFigure


def build_scheme(w: Sequence[float], v: Sequence[float]) -> DistanceAware:
    """Return distance-aware attention whose heads have these weights."""
    scheme = DistanceAware(heads=len(w))
    assert scheme.v is not None
    with torch.no_grad():
        scheme.w.copy_(torch.tensor(w))
        scheme.v.copy_(torch.tensor(v))
    return scheme


def draw_learnable_sigmoids() -> list[CaptionedFigure]:
    """Draw f(R; v) for several v (figure 1)."""
    v = [-3.0, -1.0, 0.0, 1.0, 3.0]
    return [(draw_sigmoids([build_scheme([1.0] * len(v), v)]), "f(R; v) for v = −3, −1, 0, 1 and 3")]


def draw_coefficient_matrices() -> list[CaptionedFigure]:
    """Draw the re-scaled coefficients for w = ±1 and v = ±1 (figure 2)."""
    figure = draw_coefficients([build_scheme([1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0])])
    return [(figure, "re-scaled coefficients for w = ±1 and v = ±1; red promotes a pair of tokens, blue suppresses it")]
