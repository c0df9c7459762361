"""The recommender of a run, untrained, and its tokenizer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from headwise.errors import UserError
from headwise.models import (
    HeadwiseConfig,
    HeadwiseForRecommendation,
    RecommenderConfig,
    build_tokenizer,
    count_words,
    initialise_by_name,
    read_vectors,
)
from headwise.tasks.mind import News
from headwise.training.core.pretrained import is_available, is_scheme, max_input_length, unavailable_error
from headwise.training.recommendation.config import RecommendationConfig
from headwise.training.recommendation.titles import in_parts


@dataclass(frozen=True)
class ModelBundle:
    """A model, its tokenizer, and what there is to say about them."""

    model: HeadwiseForRecommendation
    tokenizer: Any
    notes: list[str] = field(default_factory=list)


def build(settings: RecommendationConfig, news: News, seen: Any) -> ModelBundle:
    """The model of a run, untrained.

    Args:
        settings: of the run.
        news: all news.
        seen: (news,), which of them training has seen: their titles make the vocabulary.

    Raises:
        UserError: an encoder that is not there, cannot be loaded, or word vectors that cannot be read.
    """
    return by_words(settings, news, seen) if is_scheme(settings.model) else by_encoder(settings)


def by_words(settings: RecommendationConfig, news: News, seen: Any) -> ModelBundle:
    """Titles are read by a scheme of ours, from word vectors."""
    counts = count_words(
        title for first, titles in in_parts(news.data) for at, title in enumerate(titles, first) if seen[at]
    )
    tokenizer = build_tokenizer(counts, max_tokens=settings.title_length)
    notes = [f"vocabulary of {len(tokenizer):,} words from {int(np.sum(seen)):,} titles that training has seen"]
    vectors = None
    if settings.vectors is not None:
        vectors, coverage = read_vectors(settings.vectors, tokenizer.get_vocab(), counts=counts)
        notes.append(str(coverage))
    titles = HeadwiseConfig(
        vocab_size=len(tokenizer),
        word_dim=settings.word_dim if vectors is None else vectors.shape[1],
        heads=settings.heads,
        head_dim=settings.head_dim,
        layers=settings.layers,
        scheme=settings.model,  # type: ignore[arg-type]
        dropout=settings.dropout,
        max_tokens=settings.title_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = HeadwiseForRecommendation(configuration(settings, titles))
    initialise_by_name(model, settings.seed)
    if vectors is not None:
        embeddings: Any = model.get_input_embeddings()
        embeddings.weight.data.copy_(vectors)
    return ModelBundle(model, tokenizer, [*notes, told(model.config)])


def by_encoder(settings: RecommendationConfig) -> ModelBundle:
    """Titles are read by a Hugging Face encoder, which is trained further."""
    if settings.vectors is not None:
        raise UserError(f"--vectors are for words by a scheme of ours, not for --model {settings.model}")
    there = is_available(settings.model)
    options = {} if there else {"local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, **options)
        encoder = AutoModel.from_pretrained(settings.model, dtype=torch.float32, use_safetensors=True, **options)
    except (OSError, ValueError) as error:
        raise unavailable_error(settings.model, error, available=there) from None
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
    most = max_input_length(encoder, tokenizer)
    if settings.title_length > most:
        raise UserError(f"--title-length {settings.title_length}: this model reads at most {most} tokens")
    if encoder.config.pad_token_id is None:
        encoder.config.pad_token_id = tokenizer.pad_token_id
    model = HeadwiseForRecommendation(configuration(settings, encoder.config))
    kept = "titles.encoder."
    new = [name for name, _ in model.named_parameters() if not name.startswith(kept)]
    initialise_by_name(model, settings.seed, new)
    model.titles.encoder = encoder
    return ModelBundle(model, tokenizer, [f"titles by {Path(settings.model).name}", told(model.config)])


def configuration(settings: RecommendationConfig, titles: Any) -> RecommenderConfig:
    scheme: Any = settings.news_scheme or (settings.model if is_scheme(settings.model) else "distance-aware")
    return RecommenderConfig(
        titles=titles,
        scheme=scheme,
        heads=settings.heads,
        head_dim=settings.head_dim,
        layers=settings.layers,
        dropout=settings.dropout,
        history=settings.history,
        causal=settings.causal,
        pooling=settings.pooling,
    )


def told(config: RecommenderConfig) -> str:
    words = getattr(config.titles, "scheme", config.titles.model_type)
    order = ", causal" if config.causal else ""
    return f"words by {words}, clicked news by {config.scheme}{order}, users by {config.pooling} pooling"
