"""The model card of a translator."""

from typing import Any

import yaml

from headwise.training.translation.config import TranslationConfig

LOADING_EXAMPLE = """\
import headwise.models
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
batch = tokenizer(["A sentence."], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, max_new_tokens=100), skip_special_tokens=True))"""


def text(config: TranslationConfig, metrics: dict[str, Any]) -> str:
    """Return the card as Markdown with the hub's header; it contains no path and no host name."""
    header = {
        "library_name": "headwise",
        "pipeline_tag": "translation",
        "language": list(config.pair),
        "tags": ["headwise", config.scheme],
    }
    signatures = ", ".join(f"`{signature}`" for signature in metrics["signatures"].values())
    parts = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---",
        f"# {config.source} → {config.target}, {config.model}",
        f"A Transformer with {config.scheme} attention, trained from scratch with headwise "
        f"{metrics['versions']['headwise']}.",
        f"**Data.** {metrics['dataset']}",
        f"**Metrics** (± the standard error of BLEU, by bootstrap over sentences; one run, seed {config.seed}; "
        f"sacrebleu {signatures}):",
        format_table(metrics),
        f"**Training.** {metrics['steps']:,} steps, {metrics['epochs']:.3g} epochs, {metrics['train_seconds']:.0f} s. "
        + " ".join(f"{note}." for note in metrics["notes"]),
        f"**Usage.** PATH is this folder.\n\n```python\n{LOADING_EXAMPLE}\n```",
        "`headwise predict PATH FILE --out TRANSLATED` translates a file line by line.",
    ]
    return "\n\n".join(parts) + "\n"


def format_table(metrics: dict[str, Any]) -> str:
    """Return the metrics of each split as a Markdown table."""
    rows = ["| | BLEU | chrF |", "|---|---|---|"]
    for split, values in metrics["metrics"].items():
        rows.append(
            f"| {split} | {values['bleu']:.2f} ± {metrics['standard_error'][split]:.2f} | {values['chrf']:.2f} |"
        )
    return "\n".join(rows)
