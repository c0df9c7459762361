"""A click log in MIND's layout, simulated: what the best order reaches on it is known."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from headwise import __version__
from headwise.errors import UserError
from headwise.simulation import titles
from headwise.simulation.config import SimulationConfig
from headwise.simulation.user_model import Impressions, UserModel
from headwise.simulation.writing import Writer, new_folder
from headwise.tasks.metrics.clicks import ClickMetrics
from headwise.tasks.mind.oracle import ORACLE_FILE


def simulate(settings: SimulationConfig, out: Path) -> dict[str, Any]:
    """Write a log: folders train, dev and test, `probabilities.parquet` and `truth.json`; or nothing at all.

    Args:
        settings: of the log.
        out: the folder, new or empty.

    Returns:
        What `truth.json` holds: the settings, the news, and for each split the metrics of the oracle, which orders by
        the click probabilities, and, but for train, of popularity, which orders by clicks in train.

    Raises:
        UserError: what is wrong with the titles, or something is in the folder already.
    """
    news = titles.read(settings.titles, text=settings.text, label=settings.label)
    if len(news) < settings.candidates:
        raise UserError(f"{settings.titles}: {len(news)} titles are too few to show {settings.candidates} at a time")
    tenth = settings.impressions // 10
    sizes = {"train": settings.impressions - 2 * tenth, "dev": tenth, "test": tenth}
    oracle, popularity = ({split: ClickMetrics() for split in sizes} for _ in range(2))
    clicks = np.zeros(len(news), dtype=np.int64)
    with new_folder(out) as folder:
        with Writer(folder, news, sizes) as writer:
            for split, pages in splits(UserModel(news.topic, settings).log(), sizes):
                writer.write(split, pages)
                oracle[split].add(pages.probability, pages.clicked, pages.offsets)
                if split == "train":
                    np.add.at(clicks, pages.candidates[pages.clicked], 1)
                else:
                    popularity[split].add(clicks[pages.candidates], pages.clicked, pages.offsets)
        truth = {
            "headwise": __version__,
            "settings": {**asdict(settings), "titles": str(settings.titles)},
            "news": {"titles": len(news), "topics": news.topics, "left_out": news.left_out},
            "oracle": {split: tally.figures() for split, tally in oracle.items()},
            "popularity": {split: popularity[split].figures() for split in ("dev", "test")},
        }
        (folder / ORACLE_FILE).write_text(json.dumps(truth, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return truth


def splits(log: Iterator[Impressions], sizes: dict[str, int]) -> Iterator[tuple[str, Impressions]]:
    """Impressions with the split they are in: the first are train's, the last test's."""
    pages = next(log)
    for split, wanted in sizes.items():
        while wanted:
            index = np.arange(len(pages))
            part, pages = pages.take(index < wanted), pages.take(index >= wanted)
            wanted -= len(part)
            yield split, part
            if not len(pages):
                pages = next(log)
