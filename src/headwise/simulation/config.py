"""All that a simulated click log depends on: what `headwise simulate mind` asks for, and what `truth.json` keeps."""

from dataclasses import dataclass
from pathlib import Path

from headwise.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    titles: Path
    """The news: CSV, TSV, JSONL or Parquet, gzipped or not, with a title and a topic a row."""
    text: str | None = None
    """The column of the title; by default one called title, or found by its name."""
    label: str | None = None
    """The column of the topic; found by its name otherwise."""
    impressions: int = 50_000
    """How many; the first 80% in time are train, then 10% dev and 10% test."""
    users: int = 5_000
    """How many users there are."""
    candidates: int = 30
    """News shown in an impression, on average."""
    history: int = 50
    """The latest clicks that an impression tells of."""
    past: int = 20
    """Impressions of each user before the log begins, which are not written: they fill the histories."""
    interest: float = 1.5
    """How much long-term interests in topics differ, as a standard deviation of log-odds."""
    drift: float = 0.3
    """The same of short-term interests, which drift from impression to impression."""
    bursts: float = 0.25
    """The share of users who click in bursts: for a while they prefer one topic, then another."""
    burst_length: float = 8.0
    """How many impressions a burst lasts, on average."""
    quality: float = 0.2
    """How much news differ in what draws everyone, as a standard deviation of log-odds."""
    position: float = 0.3
    """How fast attention falls with the place on the page, 0 for not at all; the log does not tell the place."""
    seed: int = 0
    """Of everything that is drawn."""

    def __post_init__(self) -> None:
        least = {"impressions": 10, "users": 1, "candidates": 2, "history": 1, "past": 0, "seed": 0, "burst_length": 1}
        least |= dict.fromkeys(("interest", "drift", "bursts", "quality", "position"), 0)
        for name, smallest in least.items():
            number = getattr(self, name)
            if not smallest <= number < float("inf"):
                raise UserError(f"--{name.replace('_', '-')} must be at least {smallest}, got {number}")
        if self.bursts > 1:
            raise UserError(f"--bursts is a share of the users, between 0 and 1, got {self.bursts}")
