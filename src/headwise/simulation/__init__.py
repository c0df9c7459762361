"""Simulated data, for which the best possible metrics are known."""
