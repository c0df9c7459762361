"""What the papers report; the numbers and their source are in `figures.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class Figure:
    """A number as printed, and its standard deviation where there is one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Published:
    """A table or figure of a paper.

    Args:
        paper: which.
        url: where it is to be had; empty if that is not known.
        where: which table or figure of it.
        says: what the authors conclude.
        figures: by task, method and metric.
    """

    paper: str
    url: str
    where: str
    says: str
    figures: Mapping[str, Mapping[str, Mapping[str, Figure]]]


@cache
def published() -> dict[str, Published]:
    """All tables and figures, by name.

    Example:
        >>> published()["da-table3"].figures["ag-news"]["plain"]["accuracy"]
        Figure(mean=93.01, std=0.13)
    """
    known = yaml.safe_load(resources.files(__package__).joinpath("figures.yaml").read_text(encoding="utf-8"))
    found = {}
    for name, study in known["studies"].items():
        paper = known["papers"][study["paper"]]
        figures = {
            task: {
                method: {metric: figure(value) for metric, value in metrics.items()}
                for method, metrics in methods.items()
            }
            for task, methods in study.get("figures", {}).items()
        }
        found[name] = Published(paper["cite"], paper.get("url", ""), study["where"], study["says"], figures)
    return found


def figure(value: Any) -> Figure:
    return Figure(*value) if isinstance(value, list) else Figure(value)
