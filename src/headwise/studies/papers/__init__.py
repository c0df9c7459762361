"""Tables and figures as published in the papers; the values are in `figures.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True)
class ReportedValue:
    """A value as printed, with its standard deviation if the paper reports one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class PublishedTable:
    """A table or figure of a paper.

    Args:
        citation: the paper.
        url: the paper's address; empty if unknown.
        location: the number of the table or figure.
        conclusion: the authors' conclusion.
        values: reported values by task, method and metric.
    """

    citation: str
    url: str
    location: str
    conclusion: str
    values: Mapping[str, Mapping[str, Mapping[str, ReportedValue]]]


@cache
def load_published_tables() -> dict[str, PublishedTable]:
    """Load all tables and figures by name.

    Example:
        >>> load_published_tables()["da-table3"].values["ag-news"]["plain"]["accuracy"]
        ReportedValue(mean=93.01, std=0.13)
    """
    content = yaml.safe_load(resources.files(__package__).joinpath("figures.yaml").read_text(encoding="utf-8"))
    tables = {}
    for name, study in content["studies"].items():
        paper = content["papers"][study["paper"]]
        values = {
            task: {
                method: {metric: parse_value(value) for metric, value in metrics.items()}
                for method, metrics in methods.items()
            }
            for task, methods in study.get("values", {}).items()
        }
        tables[name] = PublishedTable(
            paper["citation"], paper.get("url", ""), study["location"], study["conclusion"], values
        )
    return tables


def parse_value(value: Any) -> ReportedValue:
    """Parse a mean, or a list of mean and standard deviation."""
    return ReportedValue(*value) if isinstance(value, list) else ReportedValue(value)
