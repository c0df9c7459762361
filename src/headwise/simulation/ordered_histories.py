"""A model of users whose clicks depend on the order of their history, to show what position schemes can learn.

Every history contains each topic equally often, so that the topics alone do not reveal what the user prefers. The user
prefers one topic, whose clicks follow each other:

    recency   they are the latest clicks
    distance  they are anywhere in the history, the same forwards and backwards

The clicks of all other topics take turns, so that two clicks on one of them are never next to each other. A candidate
is clicked with the probability e_k · σ(b + preference · [preferred topic] + quality_n), see `user_model`.
"""

from typing import Any

import numpy as np

from headwise.errors import UserError
from headwise.simulation.config import SimulationConfig
from headwise.simulation.user_model import BASE, Impressions, UserModel, to_offsets

MIN_TOPICS = 3  # with two, the clicks of the other topic could not take turns
MIN_CLICKS = 2  # on each topic, so that some are next to each other


class OrderedHistories(UserModel):
    """Users with histories that are drawn for each impression. Clicks are not added to them.

    Args:
        topic_ids: (news,), the topic of each news item.
        config: The configuration; `clicks` is recency or distance.

    Raises:
        UserError: There are too few topics, or histories are too short for them.
    """

    def __init__(self, topic_ids: Any, config: SimulationConfig) -> None:
        super().__init__(topic_ids, config)
        if self.num_topics < MIN_TOPICS:
            raise UserError(
                f"{config.titles}: --clicks {config.clicks} needs titles of at least {MIN_TOPICS} topics, got "
                f"{self.num_topics}"
            )
        self.clicks_per_topic = config.history // self.num_topics
        if self.clicks_per_topic < MIN_CLICKS:
            raise UserError(
                f"--history {config.history}: --clicks {config.clicks} needs at least {MIN_CLICKS * self.num_topics}, "
                f"{MIN_CLICKS} clicks on each of {self.num_topics} topics"
            )
        self.news_by_topic = np.argsort(self.topic_ids, kind="stable")
        self.topic_offsets = to_offsets(np.bincount(self.topic_ids, minlength=self.num_topics))
        self.preferred_topic = np.zeros(config.users, dtype=np.int64)

    def fill_histories(self) -> None:
        """Do nothing: histories are drawn with each impression."""

    def update_interests(self, users: Any) -> None:
        """Draw the topic that each user prefers in the next impression."""
        self.preferred_topic[users] = self.rng.integers(self.num_topics, size=len(users))

    def click_probability(self, users: Any, impression: Any, news: Any) -> Any:
        is_preferred = self.preferred_topic[users][impression] == self.topic_ids[news]
        return 1 / (1 + np.exp(-(BASE + self.config.preference * is_preferred + self.quality[news])))

    def histories(self, users: Any) -> tuple[Any, Any]:
        """Draw a history for each user, as a flat array with offsets."""
        topics = self.draw_topics(users)
        counts = np.diff(self.topic_offsets)[topics]
        index = self.topic_offsets[:-1][topics] + (self.rng.random(topics.shape) * counts).astype(np.int64)
        history = self.news_by_topic[index].astype(np.int32)
        return history.ravel(), to_offsets(np.full(len(users), history.shape[1]))

    def draw_topics(self, users: Any) -> Any:
        """Draw the topics of histories, (users, clicks)."""
        num_others, run_length = self.num_topics - 1, self.clicks_per_topic
        preferred = self.preferred_topic[users]
        shifts = np.argsort(self.rng.random((len(users), num_others)), axis=1) + 1
        others = np.tile((preferred[:, None] + shifts) % self.num_topics, run_length)
        start = np.full(len(users), others.shape[1])
        if self.config.clicks == "distance":
            start = self.rng.integers(others.shape[1] + 1, size=len(users))
        position = np.arange(self.num_topics * run_length) - start[:, None]
        in_run = (position >= 0) & (position < run_length)
        topics = np.repeat(preferred[:, None], self.num_topics * run_length, axis=1)
        topics[~in_run] = others.ravel()
        return topics

    def append_clicks(self, impressions: Impressions) -> None:
        """Do nothing: the next history is drawn anew."""
