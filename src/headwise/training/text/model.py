"""The models of the text pipeline: trained from scratch, or fine-tuned Hugging Face models."""

from collections.abc import Container, Iterable, Set
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from headwise import integrations
from headwise.errors import UserError
from headwise.models import FirstToken, HeadwiseConfig, build_tokenizer, count_words, initialize_by_name, read_vectors
from headwise.models.configuration import SCHEMES
from headwise.models.encoder import scale_positions
from headwise.tasks import Examples, Task
from headwise.tasks.metrics.labels import column_array
from headwise.training.core.attention_notes import check_retrofit, describe_scheme, describe_window
from headwise.training.core.config import option_name, parse_scheme_options
from headwise.training.core.extension import check_length, extend_model
from headwise.training.core.pretrained import (
    is_available,
    is_scheme,
    load_pretrained,
    load_weights,
    unavailable_error,
)
from headwise.training.text.config import FROM_SCRATCH_ONLY, TextConfig, check_from_scratch_options
from headwise.training.text.encoding import TextEncoder
from headwise.training.text.lora import add_lora

PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
    "ranking": "single_label_classification",
}

#: Ratings with another mean or standard deviation are not like stars, for which the default settings were measured.
MIN_DEVIATION, MAX_DEVIATION, MAX_MEAN = 0.1, 4.0, 20.0

#: The model, the encoder of its inputs, and notes.
BuiltModel = tuple[PreTrainedModel, TextEncoder, list[str]]


def build_model(config: TextConfig, task: Task, examples: Examples) -> BuiltModel:
    """Build the untrained model of a run.

    Raises:
        UserError: the model does not exist, cannot be loaded or does not support an option.
    """
    if is_scheme(config.model):
        return build_from_scratch(config, task, examples)
    return build_from_pretrained(config, task, examples)


def build_from_scratch(config: TextConfig, task: Task, examples: Examples) -> BuiltModel:
    """Build a model with a vocabulary of the training texts."""
    check_from_scratch_options(config)
    max_length = config.max_length or task.from_scratch.max_length
    counts = count_words(iterate_texts(examples.splits["train"]))
    tokenizer = build_tokenizer(counts, framed=config.pooling == "cls", max_tokens=max_length)
    vocabulary = tokenizer.get_vocab()
    notes = [f"vocabulary of {len(vocabulary):,} words from the training texts"]
    vectors = None
    if config.vectors is not None:
        vectors, coverage = read_vectors(config.vectors, vocabulary, counts=counts)
        notes.append(str(coverage))
    pair = config.pairs if task.pair else None
    hierarchy = config.hierarchy or ((50, 30) if task.hierarchical else None)
    model_config = HeadwiseConfig(
        vocab_size=len(vocabulary),
        word_dim=config.word_dim if vectors is None else vectors.shape[1],
        heads=config.heads,
        head_dim=config.head_dim,
        layers=config.layers,
        scheme=config.model,  # type: ignore[arg-type]
        scheme_options=parse_scheme_options(config.scheme_options),
        positions=config.positions,
        dropout=config.dropout,
        pooling=config.pooling,
        max_tokens=max_length,
        pair=pair,
        hierarchy=hierarchy,
        segment_length=config.segment_length,
        pad_token_id=tokenizer.pad_token_id,
        **label_options(task, examples),
    )
    model: Any = get_model_class(task.label_type).from_config(model_config)
    initialize_by_name(model, config.seed)
    if vectors is not None:
        model.get_input_embeddings().weight.data.copy_(vectors)
    positions = scale_positions(model, config.position_scale, vocabulary, counts)
    notes.append(f"attention scheme {model_config.scheme}, input positions {positions}")
    notes += start_at_ratings(model, task, examples, dict(model.named_parameters()))
    return model, TextEncoder(tokenizer, task.label_type, pair, max_length, hierarchy, config.long_text), notes


def build_from_pretrained(config: TextConfig, task: Task, examples: Examples) -> BuiltModel:
    """Load a Hugging Face model, with a new classification head and optionally a retrofitted scheme."""
    for name in FROM_SCRATCH_ONLY:
        if getattr(config, name) != config.default_value(name):
            raise UserError(
                f"{option_name(name)} is for models trained from scratch ({', '.join(SCHEMES)}), "
                f"not for --model {config.model}"
            )
    if config.classifier == "first-token" and task.label_type == "tokens":
        raise UserError("--classifier first-token does not apply to tagging, which labels every token")
    model_config, tokenizer, model, new, notes = load_with_head(config, task, examples)
    check_retrofit(config.retrofit, config.model, model_config)
    extension_notes = []
    if config.long_text == "extend":
        assert config.max_length is not None
        extension_notes = [
            extend_model(model, tokenizer, config.max_length, config.extend_positions, option="--long-text extend")
        ]
    limit = check_length(config.max_length, model, tokenizer, option="--long-text extend")
    max_length = config.max_length or min(task.fine_tuning.max_length, limit)
    initialize_by_name(model, config.seed, new & dict(model.named_parameters()).keys())
    notes += [*describe_scheme(model, frozen=config.lora), *extension_notes]
    notes += start_at_ratings(model, task, examples, new)
    if config.retrofit is not None:
        try:
            integrations.retrofit(model, SCHEMES[config.retrofit])
        except ValueError as error:
            raise UserError(f"--retrofit {config.retrofit}: {error}") from None
        count = sum(p.numel() for p in integrations.scheme_parameters(model))
        effect = "neutral" if integrations.is_neutral(SCHEMES[config.retrofit]) else "not neutral"
        notes.append(f"retrofitted with {config.retrofit}: {count:,} parameters, {effect} at the start")
    if config.attention_window is not None:
        try:
            integrations.set_window(model, config.attention_window, global_tokens=config.global_tokens)
        except ValueError as error:
            raise UserError(f"--attention-window {config.attention_window}: {error}") from None
    notes += describe_window(model)
    if config.lora:
        model, note = add_lora(model, config, new)
        notes.append(note)
    return model, build_encoder(config, task, model_config, tokenizer, max_length), notes


def load_with_head(config: TextConfig, task: Task, examples: Examples) -> tuple[Any, Any, Any, set[str], list[str]]:
    """Load a Hugging Face model with the head of a task.

    Returns:
        The model's configuration, the tokenizer, the model, the names of the parameters that are not pretrained, and
        notes on those that a user does not expect.

    Raises:
        UserError: the model does not exist or cannot be loaded.
    """
    available = is_available(config.model)
    options = {} if available else {"local_files_only": True}
    try:
        model_config = load_pretrained(AutoConfig, config.model, **options, **label_options(task, examples))
        tokenizer = load_pretrained(AutoTokenizer, config.model, **options)
        if tokenizer.pad_token is None and tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token works
        if model_config.pad_token_id is None:
            model_config.pad_token_id = tokenizer.pad_token_id
        model, info = load_weights(
            get_model_class(task.label_type, config.classifier),
            config.model,
            config=model_config,
            dtype=torch.float32,  # half-precision weights would lose updates of 1e-5
            ignore_mismatched_sizes=True,
            **options,
        )
    except UserError:
        raise
    except Exception as error:  # libraries raise many types for damaged files
        raise unavailable_error(config.model, error, available=available) from None
    missing, replaced = set(info["missing_keys"]), {name: shapes for name, *shapes in info["mismatched_keys"]}
    notes = [*describe_missing(model, missing), *describe_replaced(replaced)]
    return model_config, tokenizer, model, missing | replaced.keys(), notes


def describe_missing(model: Any, missing: Set[str]) -> list[str]:
    """Return a note on new parameters of the encoder. Those of the task's head and of the pooler are always new.

    Args:
        model: the model.
        missing: the names of the parameters that the pretrained model does not have.
    """
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    names = missing & dict(model.named_parameters()).keys()
    names = {name for name in names if name.startswith(prefix) and "pooler" not in name.split(".")}
    return [f"not in the pretrained model, so trained from random values: {', '.join(sorted(names))}"] if names else []


def describe_replaced(shapes: dict[str, Any]) -> list[str]:
    """Return a note on parameters whose pretrained values are not used, such as those of a classifier of other labels.

    Args:
        shapes: the pretrained and the present shape of each parameter.
    """

    def sizes(shape: Any) -> str:
        return " × ".join(map(str, shape))

    names = [f"{name} ({sizes(old)}, now {sizes(new)})" for name, (old, new) in sorted(shapes.items())]
    return [f"other shapes in the pretrained model, so trained from random values: {', '.join(names)}"] if names else []


def start_at_ratings(model: nn.Module, task: Task, examples: Examples, new: Container[str]) -> list[str]:
    """Start a new output layer at the mean and the standard deviation of ratings that differ much from stars.

    The learning rate moves a weight by a few units at most, so that prices or years would never be reached, and ratings
    of thousandths would be missed.

    Args:
        model: the model.
        task: the task.
        examples: its examples.
        new: the names of the parameters that are not pretrained.

    Returns:
        A note, if the layer was changed.
    """
    if task.label_type != "regression":
        return []
    ratings = column_array(examples.splits["train"], "label").astype(np.float64)
    mean, deviation = float(ratings.mean()), float(ratings.std())
    is_usual = MIN_DEVIATION <= deviation <= MAX_DEVIATION and abs(mean) <= MAX_MEAN
    layers = [
        layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == 1 and f"{name}.bias" in new
    ]
    if is_usual or not deviation or len(layers) != 1:
        return []
    with torch.no_grad():
        layers[0].weight.mul_(deviation)
        layers[0].bias.fill_(mean)
    return [f"the output layer starts at the ratings' mean {mean:.4g} and standard deviation {deviation:.4g}"]


def build_encoder(config: TextConfig, task: Task, model_config: Any, tokenizer: Any, max_length: int) -> TextEncoder:
    """Build the encoder of a pretrained model. A model of headwise keeps its encoding of pairs and sentences.

    Raises:
        UserError: a model of headwise expects single texts and the task has pairs, or vice versa.
    """
    pair: Any = "joint" if task.pair else None
    hierarchy = None
    if isinstance(model_config, HeadwiseConfig):
        pair, hierarchy = model_config.pair, model_config.hierarchy
        if (pair is None) == task.pair:
            raise UserError(f"--model {config.model} expects {'one text' if pair is None else 'two texts'} per row")
    return TextEncoder(tokenizer, task.label_type, pair, max_length, hierarchy, config.long_text)


def get_model_class(label_type: str, classifier: str | None = None) -> Any:
    """Return the auto class of a task's models."""
    if label_type == "tokens":
        return AutoModelForTokenClassification
    return FirstToken if classifier == "first-token" else AutoModelForSequenceClassification


def label_options(task: Task, examples: Examples) -> dict[str, Any]:
    """Return the options of a model's configuration that describe the labels."""
    names = examples.labels or ("rating",)
    options: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    return options | ({"problem_type": PROBLEM_TYPES[task.label_type]} if task.label_type in PROBLEM_TYPES else {})


def iterate_texts(rows: Dataset) -> Iterable[str]:
    """Iterate over all texts of a split, one batch in memory at a time."""
    if "words" in rows.column_names:
        return (" ".join(words) for batch in rows.select_columns(["words"]).iter(1000) for words in batch["words"])
    names = [name for name in ("text", "pair") if name in rows.column_names]
    return (text for batch in rows.select_columns(names).iter(1000) for name in names for text in batch[name])
