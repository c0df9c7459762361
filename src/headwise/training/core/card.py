"""The model card of a run, rendered from `card.md.jinja`."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache
from jinja2 import Environment, StrictUndefined

from headwise.small_files import read_json
from headwise.tasks.hub import PREFIX
from headwise.training.core.report import CONFUSION_MATRIX, RELIABILITY
from headwise.training.core.result_tables import (
    COUNTS,
    Table,
    build_metrics_table,
    build_per_class_table,
    describe_calibration,
    describe_thresholds,
    select_split,
)

TEMPLATE = "card.md.jinja"
#: The name of a model on the hub.
HUB_NAME = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
UNKNOWN = "unknown"

#: The hub's names of metrics, where they differ from ours.
HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "exact_match": "exact_match", "pearson": "pearsonr"}


@dataclass(frozen=True)
class Card:
    """The parts of a model card that differ between pipelines. None of them may name a path or the machine.

    Args:
        header: arguments of huggingface_hub's `ModelCardData`; the results are added.
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
    split = select_split(metrics)
    results_table, class_table = build_metrics_table(metrics), None
    if per_class := metrics["per_class"].get(split):
        class_table = build_per_class_table(per_class)
    text: str = environment.from_string(template).render(
        card=card,
        header=build_header(card, metrics),
        metrics=metrics,
        split=split,
        results=to_markdown(results_table),
        classes=None if class_table is None else to_markdown(class_table),
        confusion_matrix=CONFUSION_MATRIX if metrics["confusion_matrix"].get(split) else None,
        reliability=RELIABILITY,
        calibration=describe_calibration(metrics, split),
        thresholds=escape(describe_thresholds(metrics)),
        notes=list(map(escape, metrics["notes"])),
        seed=seed,
    )
    return text


def build_header(card: Card, metrics: dict[str, Any]) -> str:
    """Return the metadata of the Hugging Face hub as YAML, with the results as `model-index`.

    Args:
        card: the parts of the pipeline.
        metrics: the contents of `metrics.json`.
    """
    header, split = card.header, select_split(metrics)
    values = {} if split is None else metrics["metrics"][split]
    values = {name: value for name, value in values.items() if math.isfinite(value) and name not in COUNTS}
    results = [
        EvalResult(
            task_type=header.get("pipeline_tag", "other"),
            dataset_type=next(iter(header.get("datasets", ())), to_slug(metrics["task"])),
            dataset_name=metrics["task"],
            dataset_split="validation" if split == "dev" else split,
            metric_type=HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=value,
        )
        for name, value in values.items()
    ]
    data = ModelCardData(
        **header,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=to_slug(card.title) if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml()) + "\n"


def describe_base_model(model: str) -> dict[str, Any]:
    """Return `base_model` and `license` of a model that was fine-tuned. A license that is not known is "unknown".

    Args:
        model: a name on the hub, or a directory. A directory's model is named in its path, if it is in the hub's cache,
            or in its `config.json`; its license is in its model card.
    """
    path = Path(model)
    if not path.is_dir():
        cached = try_to_load_from_cache(model, "README.md") if HUB_NAME.fullmatch(model) else None
        license_name = read_license(Path(cached)) if isinstance(cached, str) else UNKNOWN
        return {"base_model": model, "license": license_name}
    parts = [part.removeprefix("models--").replace("--", "/") for part in path.parts if part.startswith("models--")]
    name = parts[-1] if parts else read_original_name(path)
    return ({"base_model": name} if HUB_NAME.fullmatch(name) else {}) | {"license": read_license(path / "README.md")}


def read_license(card: Path) -> str:
    """Return the license in the header of a model card; "unknown" if there is none."""
    try:
        license_name = ModelCard.load(card, ignore_metadata_errors=True).data.license
    except (OSError, ValueError, yaml.YAMLError):
        return UNKNOWN
    return license_name if isinstance(license_name, str) else UNKNOWN


def read_original_name(directory: Path) -> str:
    """Return the name of a model in its `config.json`; empty if there is none."""
    try:
        name = read_json(directory / "config.json").get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return name if isinstance(name, str) else ""


def list_hub_datasets(data: Iterable[str]) -> dict[str, Any]:
    """Return `datasets` of a card, the data sets of the hub; no entry if there are none.

    >>> list_hub_datasets(["hub:nyu-mll/glue:rte", "reviews.csv"])
    {'datasets': ['nyu-mll/glue']}
    """
    names = [name.removeprefix(PREFIX).split(":")[0] for name in data if name.startswith(PREFIX)]
    return {"datasets": names} if names else {}


def to_slug(text: str) -> str:
    """Return a text as a name without spaces and special characters.

    >>> to_slug("distance-aware for My reviews")
    'distance-aware-for-My-reviews'
    """
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "model"


def to_markdown(table: Table) -> str:
    """Return a table in Markdown.

    >>> print(to_markdown((["label", "f1"], [["a|b", "1.000"]])))
    | label | f1 |
    |---|---|
    | a\\|b | 1.000 |
    """
    header, rows = table
    lines = ["| " + " | ".join(escape_cell(cell) for cell in row) + " |" for row in [header, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def escape_cell(cell: str) -> str:
    """Return the text of a cell; the model is in bold."""
    return f"**{cell}**" if cell.startswith("this model") else escape(cell)


def escape(text: str) -> str:
    """Return a text in one line and without markup.

    >>> print(escape("a_b <b>_c_"))
    a_b \\<b\\>\\_c\\_
    """
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\_", " ".join(text.split()))
    return re.sub(r"([`*\[\]<>|])", r"\\\1", text)


def short_name(model: str) -> str:
    """Return the last part of a model's name or path, and the one before if the last is only `model`.

    >>> short_name("google-bert/bert-base-uncased"), short_name("/home/me/models/mine/"), short_name("minilm/model")
    ('bert-base-uncased', 'mine', 'minilm')
    """
    parts = model.rstrip("/").split("/")
    return parts[-2] if parts[-1] == "model" and len(parts) > 1 else parts[-1]
