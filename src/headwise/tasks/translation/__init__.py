"""Translation: pairs of sentences, where they come from, and how translations are judged."""

from headwise.tasks.translation.pairs import Pairs, read_pairs

__all__ = ["Pairs", "read_pairs"]
