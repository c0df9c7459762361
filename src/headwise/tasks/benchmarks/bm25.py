"""Candidates for a query by the words it shares with documents."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np


def candidates(queries: Sequence[str], documents: Sequence[str], count: int) -> list[list[int]]:
    """The numbers of the `count` documents that BM25 (Lucene's, k1 = 1.5, b = 0.75) puts first for each query.

    Of equal scores the earlier document comes first.
    """
    bm25s = imported()
    index = bm25s.BM25()
    index.index(
        bm25s.tokenize(list(documents), stopwords="en", return_ids=False, show_progress=False), show_progress=False
    )
    found = []
    for words in bm25s.tokenize(list(queries), stopwords="en", return_ids=False, show_progress=False):
        scores = index.get_scores(words) if words else np.zeros(len(documents))
        found.append(np.argsort(-scores, kind="stable")[:count].tolist())
    return found


def imported() -> Any:
    """bm25s, when it is needed: where JAX is installed, importing it would take three quarters of a GPU's memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import bm25s

    return bm25s
