"""Benchmarks of attention and of guided training: time, peak memory and numerical errors."""
