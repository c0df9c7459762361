"""Benchmarks of attention and of guided training: time, peak memory and numerical errors."""

from headwise._extras import require

require("inspect", __name__)
