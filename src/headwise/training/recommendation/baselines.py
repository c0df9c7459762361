"""What a model must beat to be worth its training, and the best that is possible where that is known."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.tasks import mind
from headwise.tasks.metrics.clicks import METRICS
from headwise.tasks.mind import Split
from headwise.training.recommendation.ranking import by_popularity, by_vectors, sum_metrics
from headwise.training.recommendation.titles import Titles

POPULARITY, MEAN, ORACLE = "popularity", "mean of clicked titles", "oracle"


def compute_baselines(
    split: Split, *, clicks: Any | None, words: Tensor | None, titles: Titles, history: int
) -> dict[str, dict[str, float]]:
    """Figures of two rivals that learn next to nothing.

    Args:
        split: with labels.
        clicks: (news,), how often each was clicked in training; None leaves popularity out.
        words: (vocabulary, width), the words' vectors before any training; None leaves their mean out.
        titles: of all news.
        history: the latest clicks that are looked at.
    """
    found = {}
    if clicks is not None:
        found[POPULARITY] = figures(sum_metrics(by_popularity(split, clicks)))
    if words is not None:
        found[MEAN] = figures(sum_metrics(by_vectors(split, bags(words, titles), mean, history=history)))
    return found


def oracle(data: Path, split: str) -> dict[str, dict[str, float]]:
    """The best possible figures, of a simulated log."""
    known = mind.oracle(data).get(split)
    return {} if known is None else {ORACLE: {name: known[name] for name in METRICS}}


def bags(words: Tensor, titles: Titles) -> Tensor:
    """(news, width): the mean of the words of each title, of length 1."""
    tokens = torch.from_numpy(titles.tokens).to(words.device)
    real = (
        torch.arange(tokens.shape[1], device=words.device) < torch.from_numpy(titles.lengths).to(words.device)[:, None]
    )
    parts = [
        F.embedding(some, words).mul(there[..., None]).sum(dim=1)
        for some, there in zip(tokens.split(4096), real.split(4096), strict=True)
    ]
    return F.normalize(torch.cat(parts).float(), dim=-1)


def mean(clicked: Tensor, real: Tensor) -> Tensor:
    return (clicked * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True).clamp(min=1)


def figures(tally: Any) -> dict[str, float]:
    """The metrics alone, without counts."""
    return {name: value for name, value in tally.compute().items() if name in METRICS}
