"""A translator's card: what it is, what it learnt from, how good it is, and how to load it."""

from typing import Any

import yaml

from headwise.training.translation.config import TranslationConfig

HOW_TO_LOAD = """\
import headwise.models
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
batch = tokenizer(["A sentence."], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**batch, max_new_tokens=100), skip_special_tokens=True))"""


def text(settings: TranslationConfig, metrics: dict[str, Any]) -> str:
    """The card as Markdown, with the hub's header. It holds no path and no name of the machine."""
    head = {
        "library_name": "headwise",
        "pipeline_tag": "translation",
        "language": list(settings.pair),
        "tags": ["headwise", settings.scheme],
    }
    signed = ", ".join(f"`{signature}`" for signature in metrics["signatures"].values())
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {settings.source} → {settings.target}, {settings.model}",
        f"A Transformer with {settings.scheme} attention, trained from scratch by headwise "
        f"{metrics['versions']['headwise']}.",
        f"**Data.** {metrics['dataset']}",
        f"**Figures** (± the standard error of BLEU, by bootstrap over sentences; one run, seed {settings.seed}; "
        f"sacrebleu {signed}):",
        table(metrics),
        f"**Training.** {metrics['steps']:,} steps, {metrics['epochs']:.3g} epochs, {metrics['train_seconds']:.0f} s. "
        + " ".join(f"{note}." for note in metrics["notes"]),
        f"**Use it.** PATH is this folder.\n\n```python\n{HOW_TO_LOAD}\n```",
        "`headwise predict PATH FILE --out TRANSLATED` translates a file line by line.",
    ]
    return "\n\n".join(parts) + "\n"


def table(metrics: dict[str, Any]) -> str:
    """The figures of each split, as Markdown."""
    rows = ["| | BLEU | chrF |", "|---|---|---|"]
    for split, found in metrics["metrics"].items():
        rows.append(f"| {split} | {found['bleu']:.2f} ± {metrics['standard_error'][split]:.2f} | {found['chrf']:.2f} |")
    return "\n".join(rows)
