"""The model card of a run, rendered from `card.md.jinja`."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

TEMPLATE = "card.md.jinja"


@dataclass(frozen=True)
class Card:
    """The parts of a model card that differ between pipelines. None of them may name a path or the machine.

    Args:
        header: the metadata of the Hugging Face hub.
        title: the heading.
        description: what the model is, in sentences.
        error_method: how the standard error was estimated.
        loading_code: python code that loads the model from the directory `PATH`.
        usage: a sentence on `headwise predict`.
    """

    header: dict[str, Any]
    title: str
    description: str
    error_method: str
    loading_code: str
    usage: str


def render_card(card: Card, metrics: dict[str, Any], *, seed: int) -> str:
    """Return a model card as Markdown.

    Args:
        card: the parts of the pipeline.
        metrics: the contents of `metrics.json`.
        seed: the run's seed.
    """
    template = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    text: str = environment.from_string(template).render(
        card=card,
        header=yaml.safe_dump(card.header, sort_keys=False),
        metrics=metrics,
        names=list(next(iter(metrics["metrics"].values()), {})),
        seed=seed,
    )
    return text


def short_name(model: str) -> str:
    """Return the last part of a model's name or path.

    >>> short_name("google-bert/bert-base-uncased"), short_name("/home/me/models/mine/")
    ('bert-base-uncased', 'mine')
    """
    return model.rstrip("/").split("/")[-1]
