"""Scores and metrics of all candidates of a click log, by a model and by baselines.

Each news item is encoded once and each distinct history once; a score is a dot product. Impressions with the same
latest clicks share a user vector. Histories are identified by a 64-bit hash. User vectors are in a memory-mapped file;
apart from that, an impression takes about 24 bytes. `headwise evaluate` and `headwise predict` therefore score logs in
parts of `PART_IMPRESSIONS`.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.tasks import mind
from headwise.tasks.metrics.clicks import METRICS, ClickMetrics
from headwise.tasks.mind import Impressions, Split
from headwise.training.recommendation.batches import splitmix64, take_latest
from headwise.training.recommendation.titles import Titles

PART_IMPRESSIONS = 2**17
NEWS_BATCH_SIZE, USER_BATCH_SIZE = 2048, 512
POPULARITY, MEAN, ORACLE = "popularity", "mean of clicked titles", "oracle"

#: Impressions in the log's order, a part at a time, with the scores of their candidates.
ScoredImpressions = Iterator[tuple[Impressions, Any]]
#: Vectors of clicked news (batch, history, width), the latest last, and their mask → user vectors (batch, width).
UserEncoder = Callable[[Tensor, Tensor], Tensor]
Precision = Callable[[], AbstractContextManager[Any]]


@torch.inference_mode()
def score_by_model(
    model: Any, split: Split, titles: Titles, *, history: int, precision: Precision = nullcontext
) -> ScoredImpressions:
    """Score all candidates with a model."""
    model.eval()
    with precision():
        news_vectors = encode_news(model, titles)
    return score_by_vectors(split, news_vectors, model.users, history=history, precision=precision)


def encode_news(model: Any, titles: Titles) -> Tensor:
    """Return the vectors of all news, (news, width), encoded in batches of similar length."""
    order = np.argsort(titles.lengths, kind="stable")
    vectors = torch.empty(len(order), model.config.dim, device=model.device)
    for start in range(0, len(order), NEWS_BATCH_SIZE):
        rows = order[start : start + NEWS_BATCH_SIZE]
        tokens, mask = (torch.from_numpy(array.astype(np.int64)).to(model.device) for array in titles.take(rows))
        vectors[torch.from_numpy(rows).to(vectors.device)] = model.news(tokens, mask).float()
    return vectors


@torch.inference_mode()
def score_by_vectors(
    split: Split, news_vectors: Tensor, encode_users: UserEncoder, *, history: int, precision: Precision = nullcontext
) -> ScoredImpressions:
    """Score all candidates by the dot product of news and user vectors."""
    device = news_vectors.device
    first_rows, users = find_distinct_histories(split, history)
    with tempfile.TemporaryFile() as file:
        user_vectors = np.memmap(file, dtype=np.float32, mode="w+", shape=(len(first_rows), news_vectors.shape[1]))
        for start in range(0, len(first_rows), USER_BATCH_SIZE):
            part = split.take(first_rows[start : start + USER_BATCH_SIZE])
            clicked = torch.from_numpy(take_latest(part.history, part.history_offsets, history)).to(device, torch.int64)
            with precision():
                vectors = encode_users(news_vectors[clicked.clamp(min=0)], clicked >= 0)
            user_vectors[start : start + USER_BATCH_SIZE] = vectors.float().cpu().numpy()
        start = 0
        for part in split.parts():
            num_candidates = np.diff(part.offsets)
            vectors = torch.from_numpy(user_vectors[users[start : start + len(num_candidates)]]).to(device)
            candidates = torch.tensor(part.candidates, dtype=torch.int64, device=device)
            repeats = torch.from_numpy(num_candidates.astype(np.int64)).to(device)
            repeated = vectors.repeat_interleave(repeats, dim=0)
            yield part, (repeated * news_vectors[candidates]).sum(dim=-1).cpu().numpy()
            start += len(num_candidates)


def find_distinct_histories(split: Split, history: int) -> tuple[Any, Any]:
    """Return the first impression with each distinct history, and each impression's index into them."""
    keys = np.empty(len(split), dtype=np.uint64)
    start = 0
    for part in split.parts():
        ends = part.history_offsets[1:].astype(np.int64)
        lengths = np.minimum(np.diff(part.history_offsets), history)
        age = np.repeat(ends, np.diff(part.history_offsets)) - np.arange(len(part.history))
        with np.errstate(over="ignore"):
            hashes = splitmix64(part.history.astype(np.uint64) << np.uint64(32) | age.astype(np.uint64))
            sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(hashes)])
            keys[start : start + len(ends)] = sums[ends] - sums[ends - lengths]
        start += len(ends)
    _, first_rows, users = np.unique(keys, return_index=True, return_inverse=True)
    return first_rows, users.astype(np.int32)


def score_by_popularity(split: Split, click_counts: Any) -> ScoredImpressions:
    """Score candidates by how often they were clicked in training."""
    return ((part, click_counts[part.candidates].astype(np.float32)) for part in split.parts())


def sum_metrics(scored: ScoredImpressions) -> ClickMetrics:
    """Accumulate the metrics of scored impressions."""
    totals = ClickMetrics()
    for part, scores in scored:
        totals.add(scores, part.clicked, part.offsets)
    return totals


def mean_metrics(totals: ClickMetrics) -> dict[str, float]:
    """Return the metrics without the counts of impressions."""
    return {name: value for name, value in totals.compute().items() if name in METRICS}


def compute_baselines(
    split: Split, *, click_counts: Any | None, word_vectors: Tensor | None, titles: Titles, history: int
) -> dict[str, dict[str, float]]:
    """Compute the metrics of two baselines: popularity, and the mean of the clicked titles.

    Args:
        split: a split with labels.
        click_counts: (news,), how often each news item was clicked in training; None omits popularity.
        word_vectors: (vocabulary, width), the word vectors before training; None omits the mean of titles.
        titles: the titles of all news.
        history: the maximum number of clicks in a history.
    """
    baselines = {}
    if click_counts is not None:
        baselines[POPULARITY] = mean_metrics(sum_metrics(score_by_popularity(split, click_counts)))
    if word_vectors is not None:
        scored = score_by_vectors(split, average_words(word_vectors, titles), average_clicked, history=history)
        baselines[MEAN] = mean_metrics(sum_metrics(scored))
    return baselines


def read_oracle(data: Path, split: str) -> dict[str, dict[str, float]]:
    """Return the best possible metrics of a split; empty unless the log is simulated."""
    metrics = mind.oracle(data).get(split)
    return {} if metrics is None else {ORACLE: {name: metrics[name] for name in METRICS}}


def average_words(word_vectors: Tensor, titles: Titles) -> Tensor:
    """Return the normalized mean of each title's word vectors: (news, width)."""
    device = word_vectors.device
    tokens = torch.from_numpy(titles.tokens).to(device)
    mask = torch.arange(tokens.shape[1], device=device) < torch.from_numpy(titles.lengths).to(device)[:, None]
    sums = [
        F.embedding(token_chunk, word_vectors).mul(mask_chunk[..., None]).sum(dim=1)
        for token_chunk, mask_chunk in zip(tokens.split(4096), mask.split(4096), strict=True)
    ]
    return F.normalize(torch.cat(sums).float(), dim=-1)


def average_clicked(clicked: Tensor, mask: Tensor) -> Tensor:
    """Return the mean vector of each user's clicked news."""
    return (clicked * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
