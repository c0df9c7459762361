"""Configuration of a simulated click log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headwise.errors import UserError

#: Options of users with interests.
INTEREST_OPTIONS = ("interest", "drift", "bursts", "burst_length")


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """Options of `headwise simulate mind`, which are stored in `truth.json`."""

    titles: Path
    """The news: a CSV, TSV, JSONL or Parquet file, optionally gzipped, with a title and a topic per row."""
    text: str | None = None
    """The name of the title column; by default title or another common name."""
    label: str | None = None
    """The name of the topic column; by default detected by common names."""
    impressions: int = 50_000
    """The number of impressions; the first 80% are train, the next 10% dev, the last 10% test."""
    users: int = 5_000
    """The number of users."""
    candidates: int = 30
    """The mean number of candidates per impression."""
    history: int = 50
    """The maximum number of clicks in a history."""
    past: int = 20
    """The number of impressions per user that are simulated before the log starts, to fill the histories."""
    clicks: Literal["interests", "recency", "distance"] = "interests"
    """What clicks depend on. interests: the interests of a user, with the options --interest to --burst-length.
    recency and distance: the order of the history, in which each topic is equally frequent. The user prefers the topic
    of the latest clicks (recency), or the topic whose clicks are next to each other, wherever they are (distance)."""
    preference: float = 2.0
    """With --clicks recency or distance, how much the topic is preferred, in log-odds."""
    interest: float = 1.5
    """The standard deviation of long-term interests in topics, in log-odds."""
    drift: float = 0.3
    """The standard deviation of short-term interests in topics, in log-odds; they change at every impression."""
    bursts: float = 0.25
    """The share of users with bursts, who prefer one topic for some impressions and then another."""
    burst_length: float = 8.0
    """The mean number of impressions in a burst."""
    quality: float = 0.2
    """The standard deviation of the quality of a news item, in log-odds; it is the same for all users."""
    position: float = 0.3
    """How fast click probabilities decay with the position in the impression: as (1 + position)^−X; 0 is no decay. The
    log does not contain positions."""
    seed: int = 0
    """The random seed."""

    def __post_init__(self) -> None:
        minimums = {
            "impressions": 10,
            "users": 1,
            "candidates": 2,
            "history": 1,
            "past": 0,
            "seed": 0,
            "burst_length": 1,
            **dict.fromkeys(("preference", "interest", "drift", "bursts", "quality", "position"), 0),
        }
        for name, minimum in minimums.items():
            value = getattr(self, name)
            if not minimum <= value < float("inf"):
                raise UserError(f"--{name.replace('_', '-')} must be at least {minimum}, got {value}")
        unused = ("preference",) if self.clicks == "interests" else (*INTEREST_OPTIONS, "past")
        for name in unused:
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise UserError(f"--{name.replace('_', '-')} does not apply to --clicks {self.clicks}")
        if self.bursts > 1:
            raise UserError(f"--bursts must be between 0 and 1, got {self.bursts}")
