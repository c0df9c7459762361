"""Simulation of a click log in the layout of MIND, for which the best possible metrics are known."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from headwise import __version__
from headwise.errors import UserError
from headwise.simulation.config import SimulationConfig
from headwise.simulation.ordered_histories import OrderedHistories
from headwise.simulation.titles import read_titles
from headwise.simulation.user_model import Impressions, UserModel
from headwise.simulation.writer import LogWriter, staging_dir
from headwise.tasks.metrics.clicks import ClickMetrics
from headwise.tasks.mind.log import ORACLE_FILE


def simulate(config: SimulationConfig, out: Path) -> dict[str, Any]:
    """Simulate a log and write directories train, dev and test, `probabilities.parquet` and `truth.json`.

    If the simulation fails, nothing is written.

    Args:
        config: The configuration.
        out: The directory, new or empty.

    Returns:
        The content of `truth.json`: the configuration, the news, and for each split the metrics of the oracle, which
        ranks by click probability, and, except for train, of popularity, which ranks by the number of clicks in train.

    Raises:
        UserError: The titles are invalid, or the directory is not empty.
    """
    news = read_titles(config.titles, text=config.text, label=config.label)
    if len(news) < config.candidates:
        raise UserError(f"{config.titles}: {len(news)} titles are too few for {config.candidates} candidates")
    user_model = (UserModel if config.clicks == "interests" else OrderedHistories)(news.topic_ids, config)
    num_held_out = config.impressions // 10
    sizes = {"train": config.impressions - 2 * num_held_out, "dev": num_held_out, "test": num_held_out}
    oracle, popularity = ({split: ClickMetrics() for split in sizes} for _ in range(2))
    click_counts = np.zeros(len(news), dtype=np.int64)
    with staging_dir(out) as directory:
        with LogWriter(directory, news, sizes) as writer:
            for split, impressions in assign_splits(user_model.simulate(), sizes):
                writer.write(split, impressions)
                oracle[split].add(impressions.probability, impressions.clicked, impressions.offsets)
                if split == "train":
                    np.add.at(click_counts, impressions.candidates[impressions.clicked], 1)
                else:
                    popularity[split].add(
                        click_counts[impressions.candidates], impressions.clicked, impressions.offsets
                    )
        truth = {
            "headwise": __version__,
            "config": {**asdict(config), "titles": str(config.titles)},
            "news": {"titles": len(news), "topics": news.topics, "left_out": news.num_skipped},
            "oracle": {split: metrics.compute() for split, metrics in oracle.items()},
            "popularity": {split: popularity[split].compute() for split in ("dev", "test")},
        }
        (directory / ORACLE_FILE).write_text(json.dumps(truth, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return truth


def assign_splits(batches: Iterator[Impressions], sizes: dict[str, int]) -> Iterator[tuple[str, Impressions]]:
    """Assign impressions to splits in order, and divide batches at the boundaries of splits."""
    impressions = next(batches)
    for split, num_missing in sizes.items():
        while num_missing:
            if len(impressions) <= num_missing:
                part, impressions = impressions, next(batches)
            else:
                index = np.arange(len(impressions))
                part, impressions = impressions.take(index < num_missing), impressions.take(index >= num_missing)
            num_missing -= len(part)
            yield split, part
