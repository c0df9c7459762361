"""`headwise simulate`: data that is made up, with its truth known."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from tyro.conf import arg
from tyro.extras import SubcommandApp

from headwise.simulation.config import SimulationConfig

app = SubcommandApp()


@app.command(name="mind")
@dataclass(frozen=True, kw_only=True)
class Mind(SimulationConfig):
    """A click log in MIND's layout, over titles of yours, with known click probabilities.

    $ headwise simulate mind --titles ag_news/test.csv --out log
    $ headwise simulate mind --titles news.jsonl --text headline --label topic --drift 1 --interest 0 --out log
    $ headwise simulate mind --titles news.csv --impressions 1000000 --users 100000 --out large
    """

    out: Annotated[Path, arg(metavar="FOLDER")]
    """Where to write train, dev and test, probabilities.parquet and truth.json; a new folder."""

    def __call__(self, command: str) -> int:
        from headwise.simulation.mind import simulate

        settings = SimulationConfig(**{field.name: getattr(self, field.name) for field in fields(SimulationConfig)})
        truth = simulate(settings, self.out)
        for name in ("oracle", "popularity"):
            found = truth[name]["test"]
            figures = ", ".join(f"{metric} {found[metric]:.4f}" for metric in ("auc", "mind_mrr", "ndcg@5", "ndcg@10"))
            print(f"{name + ':':<12}{figures}")
        if left_out := truth["news"]["left_out"]:
            print(f"{left_out:,} rows without a title were left out")
        print(f"written to {self.out}")
        return 0
