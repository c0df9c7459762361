"""All candidates of all impressions scored: each news encoded once, each user once, then dot products.

A user here is a history, its latest clicks: impressions with the same one share a vector. Histories are told apart by a
hash of 64 bits. Vectors of users are a file that is mapped into memory; besides, an impression takes some 24 bytes.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.tasks.metrics.clicks import ClickMetrics
from headwise.tasks.mind import Impressions, Split
from headwise.training.recommendation.clicks import latest, mixed
from headwise.training.recommendation.titles import Titles

#: Titles, and users, that are encoded at a time.
NEWS, USERS = 2048, 512

#: Impressions in the log's order, some at a time, with the scores of their candidates.
Scored = Iterator[tuple[Impressions, Any]]
#: Vectors of clicked news (B, history, width), the latest last, and which there are → vectors of users (B, width).
Encode = Callable[[Tensor, Tensor], Tensor]
Precision = Callable[[], AbstractContextManager[Any]]


@torch.inference_mode()
def score_by_model(
    model: Any, split: Split, titles: Titles, *, history: int, precision: Precision = nullcontext
) -> Scored:
    """The scores of all candidates, by a model."""
    model.eval()
    with precision():
        news = news_vectors(model, titles)
    return by_vectors(split, news, model.users, history=history, precision=precision)


def news_vectors(model: Any, titles: Titles) -> Tensor:
    """(news, width), titles of about one length encoded together."""
    order = np.argsort(titles.lengths, kind="stable")
    found = torch.empty(len(order), model.config.dim, device=model.device)
    for first in range(0, len(order), NEWS):
        chosen = order[first : first + NEWS]
        tokens, real = (torch.from_numpy(x.astype(np.int64)).to(model.device) for x in titles.take(chosen))
        found[torch.from_numpy(chosen).to(found.device)] = model.news(tokens, real).float()
    return found


@torch.inference_mode()
def by_vectors(
    split: Split, news: Tensor, users: Encode, *, history: int, precision: Precision = nullcontext
) -> Scored:
    """The scores of all candidates: a dot product of a news and a user."""
    first_of, user_of = distinct(split, history)
    with tempfile.TemporaryFile() as file:
        vectors = np.memmap(file, dtype=np.float32, mode="w+", shape=(len(first_of), news.shape[1]))
        for first in range(0, len(first_of), USERS):
            rows = first_of[first : first + USERS]
            part = split.take(rows)
            clicked = torch.from_numpy(latest(part.history, part.history_offsets, history)).to(news.device, torch.int64)
            with precision():
                found = users(news[clicked.clamp(min=0)], clicked >= 0)
            vectors[first : first + USERS] = found.float().cpu().numpy()
        first = 0
        for part in split.parts():
            sizes = np.diff(part.offsets)
            own = torch.from_numpy(vectors[user_of[first : first + len(sizes)]]).to(news.device)
            candidates = torch.tensor(part.candidates, dtype=torch.int64, device=news.device)
            repeated = own.repeat_interleave(torch.from_numpy(sizes.astype(np.int64)).to(news.device), dim=0)
            yield part, (repeated * news[candidates]).sum(dim=-1).cpu().numpy()
            first += len(sizes)


def distinct(split: Split, history: int) -> tuple[Any, Any]:
    """An impression of each user, and each impression's user."""
    keys = np.empty(len(split), dtype=np.uint64)
    first = 0
    for part in split.parts():
        ends = part.history_offsets[1:].astype(np.int64)
        lengths = np.minimum(np.diff(part.history_offsets), history)
        age = np.repeat(ends, np.diff(part.history_offsets)) - np.arange(len(part.history))
        with np.errstate(over="ignore"):
            each = mixed(part.history.astype(np.uint64) << np.uint64(32) | age.astype(np.uint64))
            sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(each)])
            keys[first : first + len(ends)] = sums[ends] - sums[ends - lengths]
        first += len(ends)
    _, first_of, user_of = np.unique(keys, return_index=True, return_inverse=True)
    return first_of, user_of.astype(np.int32)


def by_popularity(split: Split, clicks: Any) -> Scored:
    """Candidates score by how often they were clicked in training."""
    return ((part, clicks[part.candidates].astype(np.float32)) for part in split.parts())


def sum_metrics(scored: Scored) -> ClickMetrics:
    """The metrics of a split's scores."""
    tally = ClickMetrics()
    for part, scores in scored:
        tally.add(scores, part.clicked, part.offsets)
    return tally
