"""A recommender's card: what it is, what it learnt from, how good it is beside its rivals, and how to load it."""

from typing import Any

import yaml

from headwise.tasks.metrics.clicks import METRICS
from headwise.training.recommendation.config import RecommendationConfig

HOW_TO_LOAD = """\
from transformers import AutoTokenizer
from headwise.models import HeadwiseForRecommendation

model = HeadwiseForRecommendation.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")

news = model.news(**tokenizer(titles, padding=True, return_tensors="pt"))  # a vector for each title
users = model.users(news[history][None], real)  # of clicked news, the latest last
scores = users @ news.T"""


def text(settings: RecommendationConfig, metrics: dict[str, Any]) -> str:
    """The card as Markdown, with the hub's header. It holds no path and no name of the machine."""
    name = settings.model.rstrip("/").split("/")[-1]
    head = {"library_name": "headwise", "tags": ["headwise", "recommendation"]}
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {name} for news recommendation",
        f"A recommender of news by titles and clicks, by headwise {metrics['versions']['headwise']}.",
        f"**Data.** {metrics['dataset']} impressions.",
        f"**Figures** (± the standard error of AUC over impressions; one run, seed {settings.seed}):",
        *(table(metrics, split) for split in metrics["metrics"]),
        f"**Training.** {metrics['epochs']:g} epochs in {metrics['train_seconds']:.0f} s. "
        + " ".join(f"{note}." for note in metrics["notes"]),
        f"**Use it.** PATH is this folder.\n\n```python\n{HOW_TO_LOAD}\n```",
        "`headwise predict PATH FOLDER --out prediction.zip` ranks the candidates of a log.",
    ]
    return "\n\n".join(parts) + "\n"


def table(metrics: dict[str, Any], split: str) -> str:
    """The figures of a split beside those of its rivals, as Markdown."""
    error = metrics["standard_error"][split]
    rows = [f"| {split} | " + " | ".join(METRICS) + " |", "|---|" + "---|" * len(METRICS)]
    for name, found in {"**this model**": metrics["metrics"][split], **metrics["baselines"][split]}.items():
        cells = [f"{found[metric]:.4f}" for metric in METRICS]
        if found is metrics["metrics"][split]:
            cells[0] += f" ± {error:.4f}"
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)
