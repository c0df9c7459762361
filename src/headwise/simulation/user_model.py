"""A model of users who click on news with known probabilities.

User u clicks on news item n at position k of an impression, from 0, with probability e_k · σ(b + s), where

    s = long_u[topic] + short_u[topic] + BURST · [topic is u's burst topic] + quality_n      σ(x) = 1 / (1 + exp(−x))
    e_k = (1 + k)^(−position)

Long-term interests are constant. Short-term interests decay: short ← ρ · short + √(1 − ρ²) · drift · noise at every
impression. A burst ends at an impression with probability 1 / burst_length, and another starts. Positions are uniform,
so that without knowledge of them the click probability is σ(b + s) · mean(e). This is the probability that is stored,
and no order of the candidates is better than the order by it. Impressions without a click are not in the log; this
scales all probabilities of an impression by the same factor, so that the best order does not change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.simulation.config import SimulationConfig
from headwise.tasks.metrics.clicks import sum_per_impression

BASE = -3.0  # b
BURST = 2.0
MEMORY = 0.9  # ρ
BATCH_USERS = 4096  # with one impression each


@dataclass(frozen=True)
class Impressions:
    """Impressions of different users; lists are flat arrays with offsets.

    Args:
        users: (impressions,).
        candidates: The indices of the candidates in the news.
        offsets: The start of each impression's candidates, and the end of the last.
        probability: The click probability of each candidate, without knowledge of its position.
        clicked: Whether each candidate was clicked.
        history: The indices of the news that were clicked before, the latest last.
        history_offsets: The start of each impression's history, and the end of the last.
    """

    users: Any
    candidates: Any
    offsets: Any
    probability: Any
    clicked: Any
    history: Any
    history_offsets: Any

    def __len__(self) -> int:
        return len(self.users)

    def take(self, mask: Any) -> "Impressions":
        """Return the impressions that a mask selects."""
        candidate_mask = np.repeat(mask, np.diff(self.offsets))
        history_mask = np.repeat(mask, np.diff(self.history_offsets))
        return Impressions(
            self.users[mask],
            self.candidates[candidate_mask],
            to_offsets(np.diff(self.offsets)[mask]),
            self.probability[candidate_mask],
            self.clicked[candidate_mask],
            self.history[history_mask],
            to_offsets(np.diff(self.history_offsets)[mask]),
        )


class UserModel:
    """All users, with their interests and clicks.

    Args:
        topic_ids: (news,), the topic of each news item.
        config: The configuration.
    """

    def __init__(self, topic_ids: Any, config: SimulationConfig) -> None:
        self.config, self.topic_ids = config, np.asarray(topic_ids)
        self.rng = np.random.default_rng(config.seed)
        num_users, self.num_topics = config.users, int(self.topic_ids.max()) + 1
        self.quality = config.quality * self.rng.standard_normal(len(self.topic_ids))
        self.long_term = config.interest * self.rng.standard_normal((num_users, self.num_topics), dtype=np.float32)
        self.short_term = config.drift * self.rng.standard_normal((num_users, self.num_topics), dtype=np.float32)
        self.has_bursts = self.rng.random(num_users) < config.bursts
        self.burst_topic = self.rng.integers(self.num_topics, size=num_users)
        self.num_clicks = np.zeros(num_users, dtype=np.int64)
        self.last_clicks = np.zeros((num_users, config.history), dtype=np.int32)  # a ring buffer of each user

    def simulate(self) -> Iterator[Impressions]:
        """Generate impressions with at least one click, without end. Memory does not grow with their number."""
        self.fill_histories()
        num_users = self.config.users
        while True:
            users = self.rng.choice(num_users, min(BATCH_USERS, num_users), replace=False)
            impressions = self.draw_impressions(users)
            has_click = sum_per_impression(impressions.clicked, impressions.offsets) > 0
            if has_click.any():
                yield impressions.take(has_click)

    def fill_histories(self) -> None:
        """Draw the impressions before the log starts."""
        all_users = np.arange(self.config.users)
        for _ in range(self.config.past):
            for start in range(0, len(all_users), BATCH_USERS):
                self.draw_impressions(all_users[start : start + BATCH_USERS], with_histories=False)

    def draw_impressions(self, users: Any, *, with_histories: bool = True) -> Impressions:
        """Draw one impression of each of these users, who must be distinct, with their histories or empty ones."""
        self.update_interests(users)
        offsets = to_offsets(self.draw_sizes(len(users)))
        impression = np.repeat(np.arange(len(users)), np.diff(offsets))
        candidates = self.draw_candidates(impression)
        history = self.histories(users) if with_histories else (users[:0], np.zeros(len(users) + 1, dtype=np.int64))
        attention_by_position = (1.0 + np.arange(np.diff(offsets).max())) ** -self.config.position
        attention = attention_by_position[self.draw_positions(impression, offsets)]
        mean_attention = sum_per_impression(attention, offsets) / np.diff(offsets)
        relevance = self.click_probability(users, impression, candidates)
        clicked = self.rng.random(len(candidates)) < relevance * attention
        probability = (relevance * mean_attention[impression]).astype(np.float32)
        impressions = Impressions(users, candidates, offsets, probability, clicked, *history)
        self.append_clicks(impressions)
        return impressions

    def update_interests(self, users: Any) -> None:
        """Update short-term interests and bursts."""
        noise = self.rng.standard_normal((len(users), self.num_topics), dtype=np.float32)
        self.short_term[users] = MEMORY * self.short_term[users] + np.sqrt(1 - MEMORY**2) * self.config.drift * noise
        has_ended = self.rng.random(len(users)) < 1 / self.config.burst_length
        self.burst_topic[users[has_ended]] = self.rng.integers(self.num_topics, size=int(has_ended.sum()))

    def draw_sizes(self, count: int) -> Any:
        """Draw the number of candidates of each impression."""
        return np.minimum(2 + self.rng.poisson(self.config.candidates - 2, count), len(self.topic_ids))

    def draw_candidates(self, impression: Any) -> Any:
        """Draw the news of each candidate, which are distinct within an impression."""
        num_news = len(self.topic_ids)
        news = self.rng.integers(num_news, size=len(impression))
        checked: Any = slice(None)  # the candidates of impressions that may have duplicates
        while True:
            keys = np.sort(impression[checked] * num_news + news[checked])
            repeated = keys[1:][keys[1:] == keys[:-1]]
            if not len(repeated):
                return news
            checked = np.flatnonzero(np.isin(impression, repeated // num_news))
            keys = impression[checked] * num_news + news[checked]
            order = np.argsort(keys, kind="stable")
            duplicates = checked[order[1:][np.diff(keys[order]) == 0]]
            news[duplicates] = self.rng.integers(num_news, size=len(duplicates))

    def draw_positions(self, impression: Any, offsets: Any) -> Any:
        """Draw the position of each candidate in its impression, uniformly."""
        order = np.argsort(impression + self.rng.random(len(impression)), kind="stable")
        positions = np.empty(len(impression), dtype=np.int64)
        positions[order] = np.arange(len(impression)) - offsets[impression]
        return positions

    def click_probability(self, users: Any, impression: Any, news: Any) -> Any:
        """Return the probability of a click on each candidate, given that the user looks at it.

        Args:
            users: (impressions,).
            impression: (candidates,), the index of each candidate's user.
            news: (candidates,).
        """
        in_burst = self.has_bursts[users, None] & (self.burst_topic[users, None] == np.arange(self.num_topics))
        interest = self.long_term[users] + self.short_term[users] + BURST * in_burst
        score = interest.ravel()[impression * self.num_topics + self.topic_ids[news]] + self.quality[news]
        return 1 / (1 + np.exp(-(BASE + score)))

    def histories(self, users: Any) -> tuple[Any, Any]:
        """Return the last clicks of each user as a flat array, and their offsets."""
        lengths = np.minimum(self.num_clicks[users], self.config.history)
        offsets = to_offsets(lengths)
        user_index = np.repeat(np.arange(len(users)), lengths)
        click = (self.num_clicks[users] - lengths - offsets[:-1])[user_index] + np.arange(offsets[-1])
        return self.last_clicks[users[user_index], click % self.config.history], offsets

    def append_clicks(self, impressions: Impressions) -> None:
        """Append the clicks of impressions to the histories."""
        clicked = np.flatnonzero(impressions.clicked)
        impression = np.searchsorted(impressions.offsets, clicked, side="right") - 1
        counts = np.bincount(impression, minlength=len(impressions))
        users = impressions.users[impression]
        click = self.num_clicks[users] + np.arange(len(clicked)) - to_offsets(counts)[impression]
        self.last_clicks[users, click % self.config.history] = impressions.candidates[clicked]
        self.num_clicks[impressions.users] += counts


def to_offsets(sizes: Any) -> Any:
    """Return the start of lists of these sizes, and the end of the last."""
    return np.concatenate([[0], np.cumsum(sizes)])
