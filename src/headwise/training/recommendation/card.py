"""The model card of a recommender."""

from typing import Any

import yaml

from headwise.tasks.metrics.clicks import METRICS
from headwise.training.recommendation.config import RecommendationConfig

LOADING_EXAMPLE = """\
from transformers import AutoTokenizer
from headwise.models import HeadwiseForRecommendation

model = HeadwiseForRecommendation.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")

news = model.news(**tokenizer(titles, padding=True, return_tensors="pt"))  # a vector for each title
users = model.users(news[history][None], mask)  # from clicked news, the latest last
scores = users @ news.T"""


def text(config: RecommendationConfig, metrics: dict[str, Any]) -> str:
    """Return the card as Markdown with the hub's header; it contains no path and no host name."""
    name = config.model.rstrip("/").split("/")[-1]
    header = {"library_name": "headwise", "tags": ["headwise", "recommendation"]}
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {name} for news recommendation",
        f"A news recommender based on titles and clicks, trained with headwise {metrics['versions']['headwise']}.",
        f"**Data.** {metrics['dataset']} impressions.",
        f"**Metrics** (± the standard error of AUC over impressions; one run, seed {config.seed}):",
        *(format_table(metrics, split) for split in metrics["metrics"]),
        f"**Training.** {metrics['epochs']:g} epochs in {metrics['train_seconds']:.0f} s. "
        + " ".join(f"{note}." for note in metrics["notes"]),
        f"**Usage.** PATH is this folder.\n\n```python\n{LOADING_EXAMPLE}\n```",
        "`headwise predict PATH FOLDER --out prediction.zip` ranks the candidates of a log.",
    ]
    return "\n\n".join(parts) + "\n"


def format_table(metrics: dict[str, Any], split: str) -> str:
    """Return the metrics of a split and of its baselines as a Markdown table."""
    rows = [f"| {split} | " + " | ".join(METRICS) + " |", "|---|" + "---|" * len(METRICS)]
    for name, values in {"**this model**": metrics["metrics"][split], **metrics["baselines"][split]}.items():
        cells = [f"{values[metric]:.4f}" for metric in METRICS]
        if values is metrics["metrics"][split]:
            cells[0] += f" ± {metrics['standard_error'][split]:.4f}"
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)
