"""The model card of the text pipeline."""

from collections.abc import Sequence
from typing import Any

from headwise.integrations.window_attention import CONFIG_ENTRY as WINDOW
from headwise.tasks import Task
from headwise.training.core.attention_notes import describe_attention
from headwise.training.core.card import UNKNOWN, Card, describe_base_model, escape, list_hub_datasets, short_name
from headwise.training.core.pretrained import is_scheme
from headwise.training.text.config import TextConfig

FROM_SCRATCH_CODE = """\
import headwise
from transformers import AutoTokenizer, {auto_class}

model = {auto_class}.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")"""

NEEDS_HEADWISE_CODE = """\
import headwise as hw
from transformers import AutoTokenizer, {auto_class}

model = hw.from_pretrained("PATH", {auto_class})
tokenizer = AutoTokenizer.from_pretrained("PATH")"""

FIRST_TOKEN_CODE = """\
import headwise as hw
from headwise.models import FirstToken
from transformers import AutoTokenizer

model = hw.from_pretrained("PATH", FirstToken)
tokenizer = AutoTokenizer.from_pretrained("PATH")"""

TRANSFORMERS_CODE = """\
from transformers import pipeline

pipe = pipeline("{pipeline_tag}", model="PATH"{truncation})"""

#: What a card says about texts that transformers and `headwise predict` read differently.
LONG_TEXT_USAGE = {
    "windows": " Of texts with more than {max_length} tokens, it reads all tokens in windows and averages the scores.",
    "head-tail": " Of texts with more than {max_length} tokens, it reads the first quarter and the end.",
}


def build_card(config: TextConfig, task: Task, labels: Sequence[str], model_config: Any, max_length: int) -> Card:
    """Return the parts of a model card.

    Args:
        config: the run's configuration.
        task: the task.
        labels: the names of the classes; none for regression.
        model_config: the configuration of the trained model.
        max_length: the maximum number of tokens.
    """
    is_tagging = task.label_type == "tokens"
    pipeline_tag = "token-classification" if is_tagging else "text-classification"
    auto_class = f"AutoModelFor{'Token' if is_tagging else 'Sequence'}Classification"
    code = get_loading_code(config, model_config)
    prediction = {"regression": "a number", "tokens": "one tag per word"}.get(
        task.label_type, "a label and probabilities"
    )
    truncation = "" if is_tagging else f", truncation=True, max_length={max_length}"  # taggers truncate by themselves
    long_texts = LONG_TEXT_USAGE.get(config.long_text, "").format(max_length=max_length)
    label_names = f" Labels: {', '.join(map(escape, labels))}." if labels else ""
    usage = f"`headwise predict PATH FILE --out LABELLED` adds {prediction} to each row of a file."
    if task.label_type == "ranking":
        usage = "`headwise predict PATH QUERIES --documents DOCUMENTS --out RANKED` ranks documents for queries."
    return Card(
        header={
            "library_name": "transformers" if code == TRANSFORMERS_CODE else "headwise",
            "pipeline_tag": "text-ranking" if task.label_type == "ranking" else pipeline_tag,
            "tags": ["headwise", *([config.model] if is_scheme(config.model) else [])],
            **({"license": UNKNOWN} if is_scheme(config.model) else describe_base_model(config.model)),
            **list_hub_datasets(config.data or (task.source.split(";")[0],)),
        },
        title=f"{short_name(config.model)} for {task.name}",
        description=f"{describe_model(config, model_config)}.",
        error_method=f"bootstrap over {'queries' if task.label_type == 'ranking' else 'rows'}",
        loading_code=code.format(auto_class=auto_class, pipeline_tag=pipeline_tag, truncation=truncation),
        usage=f"{usage}{long_texts}{label_names}",
    )


def describe_model(config: TextConfig, model_config: Any) -> str:
    """Return a phrase on the model and how it was trained."""
    parts = [f"A `{short_name(config.model)}` model"]
    parts.append("trained from scratch" if is_scheme(config.model) else "fine-tuned")
    if config.classifier == "first-token":
        parts.append("with a classifier on the first token, W · ReLU(h)")
    if config.retrofit:
        parts.append(f"retrofitted with {config.retrofit} attention")
    elif attention := describe_attention(model_config):
        parts.append(f"with {attention}")
    if config.guides:
        parts.append(f"guided by {', '.join(config.guides)}")
    return ", ".join(parts)


def get_loading_code(config: TextConfig, model_config: Any) -> str:
    """Return a template of the code that loads a model."""
    if is_scheme(config.model):
        return FROM_SCRATCH_CODE
    if config.classifier == "first-token":
        return FIRST_TOKEN_CODE
    needs_headwise = describe_attention(model_config) is not None or hasattr(model_config, WINDOW)
    return NEEDS_HEADWISE_CODE if needs_headwise else TRANSFORMERS_CODE
