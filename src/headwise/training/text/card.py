"""A model's card: what it is, what it learnt from, how good it is, and how to load it."""

from typing import Any

import yaml

from headwise.tasks import Task
from headwise.training.text.config import TextConfig
from headwise.training.text.model import is_ours

HOW_TO_LOAD = {
    "ours": """\
import headwise.models
from transformers import AutoTokenizer, {auto}

model = {auto}.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")""",
    "retrofitted": """\
import headwise as hw
from transformers import AutoTokenizer, {auto}

model = hw.from_pretrained("PATH", {auto})
tokenizer = AutoTokenizer.from_pretrained("PATH")""",
    "first-token": """\
import headwise as hw
from headwise.models import FirstToken
from transformers import AutoTokenizer

model = hw.from_pretrained("PATH", FirstToken)
tokenizer = AutoTokenizer.from_pretrained("PATH")""",
    "theirs": """\
from transformers import pipeline

pipe = pipeline("{pipeline}", model="PATH")""",
}


def text(settings: TextConfig, task: Task, metrics: dict[str, Any]) -> str:
    """The card as Markdown, with the hub's header. It holds no path and no name of the machine."""
    tokens = task.label_type == "tokens"
    name = settings.model.rstrip("/").split("/")[-1]
    kind = kind_of(settings)
    head = {
        "library_name": "transformers" if kind == "theirs" else "headwise",
        "pipeline_tag": "token-classification" if tokens else "text-classification",
        "tags": ["headwise", *([settings.model] if kind == "ours" else [])],
    }
    how = HOW_TO_LOAD[kind].format(
        auto=f"AutoModelFor{'Token' if tokens else 'Sequence'}Classification", pipeline=head["pipeline_tag"]
    )
    what = [f"`{name}`" + (", trained from scratch" if kind == "ours" else ", trained further")]
    if settings.classifier == "first-token":
        what.append("with a classifier of the first token, W · ReLU(h)")
    if settings.retrofit:
        what.append(f"with {settings.retrofit} attention put in")
    if settings.guides:
        what.append(f"guided by {', '.join(settings.guides)}")
    answer = {"regression": "a number", "tokens": "a tag for each word"}.get(
        task.label_type, "a label and probabilities"
    )
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {name} for {task.name}",
        f"{', '.join(what)}, by headwise {metrics['versions']['headwise']}.",
        f"**Data.** {metrics['dataset']}",
        f"**Figures** (± the standard error of {task.primary}, by bootstrap over rows; one run, seed {settings.seed}):",
        table(metrics),
        f"**Training.** {metrics['epochs']:g} epochs in {metrics['train_seconds']:.0f} s. "
        + " ".join(f"{note}." for note in metrics["notes"]),
        f"**Use it.** PATH is this folder.\n\n```python\n{how}\n```",
        f"`headwise predict PATH FILE --out LABELLED` writes {answer} beside each row of a file. "
        f"Labels: {', '.join(metrics['labels']) or 'a number'}.",
    ]
    return "\n\n".join(parts) + "\n"


def kind_of(settings: TextConfig) -> str:
    """Which of the ways to load it is the model's."""
    if is_ours(settings.model):
        return "ours"
    if settings.classifier == "first-token":
        return "first-token"
    return "retrofitted" if settings.retrofit else "theirs"


def table(metrics: dict[str, Any]) -> str:
    """The figures of each split, and those of what the model should beat, as Markdown."""
    figures, errors = metrics["metrics"], metrics["standard_error"]
    rows = ["| | " + " | ".join(figures) + " |", "|---|" + "---|" * len(figures)]
    for name in next(iter(figures.values()), {}):
        cells = [
            f"{found[name]:.4g}" + (f" ± {errors[split]:.2g}" if name == metrics["primary_metric"] else "")
            for split, found in figures.items()
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    primary, beside = metrics["primary_metric"], metrics["baselines"]
    for rival in next(iter(beside.values()), {}):
        cells = [f"{found[rival][primary]:.4g}" for found in beside.values()]
        rows.append(f"| {primary} of {rival} | {' | '.join(cells)} |")
    return "\n".join(rows)
