"""Translation: sentence pairs and metrics."""

from headwise.tasks.translation.pairs import Pairs, read_pairs

__all__ = ["Pairs", "read_pairs"]
