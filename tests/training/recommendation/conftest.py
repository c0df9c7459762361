"""A small simulated click log over made-up titles of two topics."""

import csv
import random
from pathlib import Path

import pytest

from headwise.simulation.config import SimulationConfig
from headwise.simulation.mind import simulate
from headwise.tasks import mind

WORDS = {"sports": ("goal", "team", "coach", "match", "cup"), "money": ("bank", "stock", "price", "trade", "fund")}
OTHERS = ("new", "late", "big", "home", "city", "plan")


def titles(path: Path, count: int = 60) -> Path:
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["title", "label"])
        for number in range(count):
            topic = ("sports", "money")[number % 2]
            words = [*draw.sample(WORDS[topic], draw.randint(1, 3)), *draw.sample(OTHERS, draw.randint(1, 3))]
            rows.writerow([" ".join(words), topic])
    return path


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 impressions of 20 users; one of train's has only clicks, one only non-clicks, one no history."""
    folder = tmp_path_factory.mktemp("mind")
    settings = SimulationConfig(
        titles=titles(folder / "titles.csv"), impressions=200, users=20, candidates=8, history=12, past=6, interest=3.0
    )
    simulate(settings, folder / "log")
    behaviors = folder / "log" / "train" / "behaviors.tsv"
    lines = behaviors.read_text().splitlines()
    lines += ["901\tU1\tt\tN1 N2\tN3-1", "902\tU1\tt\tN1 N2\tN3-0 N4-0", "903\tU99\tt\t\tN5-1 N6-0"]
    behaviors.write_text("".join(f"{line}\n" for line in lines))
    return folder / "log"


@pytest.fixture
def read(log: Path, tmp_path: Path) -> mind.Log:
    return mind.read(log, cache=tmp_path)
