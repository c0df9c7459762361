from tests.training.conftest import bert, headwise, own_cache, reviews

__all__ = ["bert", "headwise", "own_cache", "reviews"]
