"""The model of a run: one of ours, or a Hugging Face model that is trained further."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import Dataset
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from headwise import integrations
from headwise.errors import UserError
from headwise.models import FirstToken, HeadwiseConfig, build_tokenizer, count_words, initialise_by_name, read_vectors
from headwise.models.configuration import SCHEMES
from headwise.tasks import Examples, Task
from headwise.training.core.config import option_name
from headwise.training.text.config import FROM_SCRATCH_ONLY, TextConfig
from headwise.training.text.encoding import TextEncoder, longest

PROBLEMS = {
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
    "ranking": "single_label_classification",
}
RETROFITS = {"distance-aware": "DistanceAware", "rpr": "RelativePositions"}


@dataclass(frozen=True)
class ModelBundle:
    """A model, what turns rows into its inputs, and what there is to say about them."""

    model: PreTrainedModel
    reader: TextEncoder
    notes: list[str] = field(default_factory=list)


def is_ours(model: str) -> bool:
    """Whether a model's name is that of a scheme, and the model starts from scratch."""
    return model in SCHEMES


def build(settings: TextConfig, task: Task, examples: Examples) -> ModelBundle:
    """The model of a run, untrained.

    Raises:
        UserError: a model that is not there, cannot be loaded, or cannot do what is asked.
    """
    return from_scratch(settings, task, examples) if is_ours(settings.model) else fine_tuned(settings, task, examples)


def from_scratch(settings: TextConfig, task: Task, examples: Examples) -> ModelBundle:
    if settings.retrofit is not None:
        raise UserError(f"--retrofit is for trained models; --model {settings.model} has its scheme from the start")
    if settings.classifier is not None:
        raise UserError(f"--classifier is for Hugging Face models, not for --model {settings.model}; see --pooling")
    max_length = settings.max_length or task.from_scratch.max_length
    counts = count_words(texts(examples.splits["train"]))
    tokenizer = build_tokenizer(counts, framed=settings.pooling == "cls", max_tokens=max_length)
    vocabulary = tokenizer.get_vocab()
    notes = [f"vocabulary of {len(vocabulary):,} words from the training texts"]
    vectors = None
    if settings.vectors is not None:
        vectors, coverage = read_vectors(settings.vectors, vocabulary, counts=counts)
        notes.append(str(coverage))
    pair = settings.pairs if task.pair else None
    hierarchy = settings.hierarchy or ((50, 30) if task.hierarchical else None)
    config = HeadwiseConfig(
        vocab_size=len(vocabulary),
        word_dim=settings.word_dim if vectors is None else vectors.shape[1],
        heads=settings.heads,
        head_dim=settings.head_dim,
        layers=settings.layers,
        scheme=settings.model,  # type: ignore[arg-type]
        scheme_options=scheme_options(settings.scheme_options),
        positions=settings.positions,
        dropout=settings.dropout,
        pooling=settings.pooling,
        max_tokens=max_length,
        pair=pair,
        hierarchy=hierarchy,
        pad_token_id=tokenizer.pad_token_id,
        **labels(task, examples),
    )
    notes.append(f"attention {config.scheme}, input positions {config.positions}")
    model: Any = class_for(task.label_type).from_config(config)
    initialise_by_name(model, settings.seed)
    if vectors is not None:
        model.get_input_embeddings().weight.data.copy_(vectors)
    return ModelBundle(model, TextEncoder(tokenizer, task.label_type, pair, max_length, hierarchy), notes)


def scheme_options(given: tuple[str, ...]) -> dict[str, Any]:
    """What `--scheme-options mapping=sigmoid k=8 values=false` says.

    Raises:
        UserError: no name and value.

    Example:
        >>> scheme_options(("mapping=sigmoid", "k=8", "values=false"))
        {'mapping': 'sigmoid', 'k': 8, 'values': False}
    """
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise UserError(f"--scheme-options {one}: expected NAME=VALUE, such as mapping=sigmoid")
        found[name.replace("-", "_")] = yaml.safe_load(value)
    return found


def fine_tuned(settings: TextConfig, task: Task, examples: Examples) -> ModelBundle:
    for name in FROM_SCRATCH_ONLY:
        if getattr(settings, name) != settings.default_value(name):
            raise UserError(
                f"{option_name(name)} is for models of ours ({', '.join(SCHEMES)}), not for --model {settings.model}"
            )
    if settings.classifier == "first-token" and task.label_type == "tokens":
        raise UserError("--classifier first-token: tags are of every token")
    there = Path(settings.model).exists() or answers(settings.model)
    options = {} if there else {"local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(settings.model, **options, **labels(task, examples))
        tokenizer = AutoTokenizer.from_pretrained(settings.model, **options)
        if tokenizer.pad_token is None and tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        model, info = class_for(task.label_type, settings.classifier).from_pretrained(
            settings.model,
            config=config,
            dtype=torch.float32,  # however it was saved: in half precision, steps of 1e-5 would be lost
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    except UserError as mistake:
        raise UserError(f"--classifier {settings.classifier}: {mistake}") from None
    except (OSError, ValueError) as error:
        raise unavailable(settings.model, error, there) from None
    if getattr(config, "headwise", None) is not None:
        raise UserError(f"--model {settings.model}: has a position scheme put in; name the model that it was made of")
    limit = longest(model, tokenizer)
    if settings.max_length is not None and settings.max_length > limit:
        raise UserError(f"--max-length {settings.max_length}: this model reads at most {limit} tokens")
    max_length = settings.max_length or min(task.fine_tuning.max_length, limit)
    new = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    initialise_by_name(model, settings.seed, new & dict(model.named_parameters()).keys())
    notes = [f"{len(new)} new parameter tensors, drawn by the seed: {', '.join(sorted(new))}"] if new else []
    if settings.retrofit is not None:
        try:
            integrations.retrofit(model, RETROFITS[settings.retrofit])
        except ValueError as error:
            raise UserError(f"--retrofit {settings.retrofit}: {error}") from None
        count = sum(p.numel() for p in integrations.scheme_parameters(model))
        notes.append(f"{settings.retrofit} retrofitted: {count:,} parameters, neutral at the start")
    return ModelBundle(model, reader_for(settings, task, config, tokenizer, max_length), notes)


def reader_for(settings: TextConfig, task: Task, config: Any, tokenizer: Any, max_length: int) -> TextEncoder:
    """A model of ours that is trained further reads as it did."""
    pair: Any = "joint" if task.pair else None
    hierarchy = None
    if isinstance(config, HeadwiseConfig):
        pair, hierarchy = config.pair, config.hierarchy
        if (pair is None) == task.pair:
            raise UserError(f"--model {settings.model} reads {'one text' if pair is None else 'two texts'} a row")
    return TextEncoder(tokenizer, task.label_type, pair, max_length, hierarchy)


def answers(name: str) -> bool:
    """Whether the hub can be reached. Where it cannot, its client would try for half a minute."""
    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError):  # it says no, so it is there
        return True
    except Exception:  # whatever the hub's client raises where it reaches nothing
        return False
    return True


def unavailable(name: str, error: Exception, there: bool) -> UserError:
    if there:
        return UserError(f"--model {name}: {str(error).splitlines()[0]}")
    return UserError(
        f"--model {name}: no such folder, and the Hugging Face hub cannot be reached; "
        f"give a folder with config.json and model.safetensors, or one of {', '.join(SCHEMES)}"
    )


def class_for(label_type: str, classifier: str | None = None) -> Any:
    """The auto class of a task's models."""
    if label_type == "tokens":
        return AutoModelForTokenClassification
    return FirstToken if classifier == "first-token" else AutoModelForSequenceClassification


def labels(task: Task, examples: Examples) -> dict[str, Any]:
    """What a configuration says about labels."""
    names = examples.labels or ("rating",)
    found: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    return found | ({"problem_type": PROBLEMS[task.label_type]} if task.label_type in PROBLEMS else {})


def texts(rows: Dataset) -> Iterable[str]:
    """All texts of a split, a batch in memory at a time."""
    if "words" in rows.column_names:
        return (" ".join(words) for part in rows.select_columns(["words"]).iter(1000) for words in part["words"])
    names = [name for name in ("text", "pair") if name in rows.column_names]
    return (text for part in rows.select_columns(names).iter(1000) for name in names for text in part[name])
