"""A small simulated click log with titles of two topics, and a run on it."""

import csv
import random
from pathlib import Path

import pytest

from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.tasks import mind
from headwise.training import train
from headwise.training.recommendation.config import RecommendationConfig

WORDS = {"sports": ("goal", "team", "coach", "match", "cup"), "money": ("bank", "stock", "price", "trade", "fund")}
OTHERS = ("new", "late", "big", "home", "city", "plan")


def write_titles(path: Path, count: int = 60) -> Path:
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "label"])
        for number in range(count):
            topic = ("sports", "money")[number % 2]
            words = [*rng.sample(WORDS[topic], rng.randint(1, 3)), *rng.sample(OTHERS, rng.randint(1, 3))]
            writer.writerow([" ".join(words), topic])
    return path


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 impressions of 20 users; in train one has only clicks, one only non-clicks, one no history."""
    directory = tmp_path_factory.mktemp("mind")
    config = SimulationConfig(
        titles=write_titles(directory / "titles.csv"),
        impressions=200,
        users=20,
        candidates=8,
        history=12,
        past=6,
        interest=3.0,
    )
    simulate(config, directory / "log")
    behaviors = directory / "log" / "train" / "behaviors.tsv"
    lines = behaviors.read_text().splitlines()
    lines += ["901\tU1\tt\tN1 N2\tN3-1", "902\tU1\tt\tN1 N2\tN3-0 N4-0", "903\tU99\tt\t\tN5-1 N6-0"]
    behaviors.write_text("".join(f"{line}\n" for line in lines))
    return directory / "log"


@pytest.fixture
def loaded_log(log: Path, tmp_path: Path) -> mind.Log:
    return mind.read(log, cache=tmp_path)


@pytest.fixture(scope="package")
def run(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    config = RecommendationConfig(
        task="mind",
        data=(str(log),),
        model="none",
        news_scheme="rpr",
        pooling="recent",
        causal=True,
        heads=2,
        head_dim=4,
        word_dim=8,
        history=10,
        batch_size=32,
        epochs=4,
        learning_rate=1e-2,
        dropout=0.0,
    )
    with pytest.MonkeyPatch.context() as monkeypatch:  # the fixture that sets the cache has function scope
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "cache")
        train(config, out)
    return out
