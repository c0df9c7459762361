"""Simulated data, for which the best possible metrics are known."""

from headwise._extras import require

require("train", __name__)
