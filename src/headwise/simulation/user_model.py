"""Users who read news, and click with known probabilities.

A user u who sees news n at place k of a page, counted from 0, clicks with probability e_k · σ(b + s), where

    s = long_u[topic] + short_u[topic] + BURST · [topic is u's burst] + quality_n        σ(x) = 1 / (1 + exp(−x))
    e_k = (1 + k)^(−position)

Long-term interests stay. Short-term ones forget: short ← ρ · short + √(1 − ρ²) · drift · noise at every impression. A
burst ends at an impression with probability 1 / burst_length, and another begins. Places are drawn evenly, so that
without knowing them a click has probability σ(b + s) · mean(e): that is what is given, and no order of the candidates
is better than by it. Impressions without a click do not enter the log; that multiplies all probabilities of an
impression by the same number, so the best order stays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.simulation.config import SimulationConfig
from headwise.tasks.metrics.clicks import impression_metrics

BASE = -3.0  # b
BURST = 2.0
MEMORY = 0.9  # ρ
AT_A_TIME = 4096  # impressions, each of another user


@dataclass(frozen=True)
class Impressions:
    """What some users were shown, one impression each; lists are flat, with offsets.

    Args:
        users: (impressions,).
        candidates: numbers of news.
        offsets: where each impression's candidates begin, and where the last one's end.
        probability: of a click on each candidate, by whoever does not know its place on the page.
        clicked: 0 or 1 for each.
        history: the numbers of the news clicked before, the latest last.
        history_offsets: where each impression's history begins, and where the last one's ends.
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

    def take(self, kept: Any) -> "Impressions":
        """Those impressions that a mask keeps."""
        shown, told = np.repeat(kept, np.diff(self.offsets)), np.repeat(kept, np.diff(self.history_offsets))
        return Impressions(
            self.users[kept],
            self.candidates[shown],
            starts(np.diff(self.offsets)[kept]),
            self.probability[shown],
            self.clicked[shown],
            self.history[told],
            starts(np.diff(self.history_offsets)[kept]),
        )


class UserModel:
    """All users, with what they are interested in and what they clicked.

    Args:
        topic: (news,), the number of each news' topic.
        settings: of the log.
    """

    def __init__(self, topic: Any, settings: SimulationConfig) -> None:
        self.settings, self.topic = settings, np.asarray(topic)
        self.random = np.random.default_rng(settings.seed)
        users, self.topics = settings.users, int(self.topic.max()) + 1
        self.quality = settings.quality * self.random.standard_normal(len(self.topic))
        self.long = settings.interest * self.random.standard_normal((users, self.topics), dtype=np.float32)
        self.short = settings.drift * self.random.standard_normal((users, self.topics), dtype=np.float32)
        self.bursty = self.random.random(users) < settings.bursts
        self.burst = self.random.integers(self.topics, size=users)
        self.clicks = np.zeros(users, dtype=np.int64)
        self.latest = np.zeros((users, settings.history), dtype=np.int32)  # click c is at c modulo history

    def log(self) -> Iterator[Impressions]:
        """Impressions with at least one click, without end. Nothing grows with their number."""
        everyone = np.arange(self.settings.users)
        for _ in range(self.settings.past):
            for first in range(0, len(everyone), AT_A_TIME):
                self.show(everyone[first : first + AT_A_TIME])
        while True:
            users = self.random.choice(len(everyone), min(AT_A_TIME, len(everyone)), replace=False)
            pages = self.show(users)
            clicked = impression_metrics(pages.clicked, pages.offsets) > 0
            if clicked.any():
                yield pages.take(clicked)

    def show(self, users: Any) -> Impressions:
        """An impression of each of these users, no two the same."""
        self.drift(users)
        offsets = starts(self.sizes(len(users)))
        impression = np.repeat(np.arange(len(users)), np.diff(offsets))
        candidates = self.distinct(impression)
        history = self.histories(users)
        seen = (1.0 + self.places(impression, offsets)) ** -self.settings.position
        mean = impression_metrics(seen, offsets) / np.diff(offsets)
        wanted = self.wanted(users[impression], candidates)
        clicked = self.random.random(len(candidates)) < wanted * seen
        pages = Impressions(
            users, candidates, offsets, (wanted * mean[impression]).astype(np.float32), clicked, *history
        )
        self.remember(pages)
        return pages

    def drift(self, users: Any) -> None:
        """Short-term interests and bursts go on."""
        noise = self.random.standard_normal((len(users), self.topics), dtype=np.float32)
        self.short[users] = MEMORY * self.short[users] + np.sqrt(1 - MEMORY**2) * self.settings.drift * noise
        ends = self.random.random(len(users)) < 1 / self.settings.burst_length
        self.burst[users[ends]] = self.random.integers(self.topics, size=int(ends.sum()))

    def sizes(self, count: int) -> Any:
        """How many candidates each impression has."""
        return np.minimum(2 + self.random.poisson(self.settings.candidates - 2, count), len(self.topic))

    def distinct(self, impression: Any) -> Any:
        """News for each candidate, no two the same in an impression."""
        news = self.random.integers(len(self.topic), size=len(impression))
        while True:
            order = np.lexsort((news, impression))
            same = (np.diff(news[order]) == 0) & (np.diff(impression[order]) == 0)
            again = order[1:][same]
            if not len(again):
                return news
            news[again] = self.random.integers(len(self.topic), size=len(again))

    def places(self, impression: Any, offsets: Any) -> Any:
        """A place on the page for each candidate, drawn evenly."""
        places = np.empty(len(impression))
        places[np.lexsort((self.random.random(len(impression)), impression))] = (
            np.arange(len(impression)) - offsets[impression]
        )
        return places

    def wanted(self, users: Any, news: Any) -> Any:
        """The probability of a click on what is seen."""
        topic = self.topic[news]
        in_burst = self.bursty[users] & (self.burst[users] == topic)
        score = self.long[users, topic] + self.short[users, topic] + BURST * in_burst + self.quality[news]
        return 1 / (1 + np.exp(-(BASE + score)))

    def histories(self, users: Any) -> tuple[Any, Any]:
        """The latest clicks of each user, flat, and where they begin."""
        kept = np.minimum(self.clicks[users], self.settings.history)
        offsets = starts(kept)
        whose = np.repeat(np.arange(len(users)), kept)
        click = (self.clicks[users] - kept - offsets[:-1])[whose] + np.arange(offsets[-1])
        return self.latest[users[whose], click % self.settings.history], offsets

    def remember(self, pages: Impressions) -> None:
        """Clicks become history."""
        hits = np.flatnonzero(pages.clicked)
        impression = np.searchsorted(pages.offsets, hits, side="right") - 1
        counts = np.bincount(impression, minlength=len(pages))
        users = pages.users[impression]
        click = self.clicks[users] + np.arange(len(hits)) - starts(counts)[impression]
        self.latest[users, click % self.settings.history] = pages.candidates[hits]
        self.clicks[pages.users] += counts


def starts(sizes: Any) -> Any:
    """Where lists of these sizes begin, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)])
