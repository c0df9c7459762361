"""The untrained recommender of a run and its tokenizer."""

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
    initialize_by_name,
    read_vectors,
)
from headwise.models.encoder import scale_positions
from headwise.tasks.mind import News
from headwise.training.core.attention_notes import describe_scheme
from headwise.training.core.config import parse_scheme_options
from headwise.training.core.pretrained import (
    is_available,
    is_scheme,
    load_pretrained,
    load_weights,
    max_input_length,
    unavailable_error,
)
from headwise.training.recommendation.config import RecommendationConfig, check_from_scratch_options
from headwise.training.recommendation.titles import iterate_titles


def build_model(
    config: RecommendationConfig, news: News, is_seen: Any
) -> tuple[HeadwiseForRecommendation, Any, list[str]]:
    """Build the untrained model of a run.

    Args:
        config: the configuration of the run.
        news: all news of the log.
        is_seen: (news,), whether a news item occurs in training; the vocabulary is made of these titles.

    Returns:
        The model, its tokenizer and notes about them.

    Raises:
        UserError: the encoder does not exist or cannot be loaded, or the word vectors cannot be read.
    """
    return build_from_scratch(config, news, is_seen) if is_scheme(config.model) else build_from_encoder(config)


def build_from_scratch(
    config: RecommendationConfig, news: News, is_seen: Any
) -> tuple[HeadwiseForRecommendation, Any, list[str]]:
    """Build a model that encodes titles with word vectors and one of our schemes."""
    word_counts = count_words(
        title for start, titles in iterate_titles(news.data) for row, title in enumerate(titles, start) if is_seen[row]
    )
    tokenizer = build_tokenizer(word_counts, max_tokens=config.title_length)
    notes = [f"vocabulary of {len(tokenizer):,} words from the {int(np.sum(is_seen)):,} titles that occur in training"]
    vectors = None
    if config.vectors is not None:
        vectors, coverage = read_vectors(config.vectors, tokenizer.get_vocab(), counts=word_counts)
        notes.append(str(coverage))
    title_config = HeadwiseConfig(
        vocab_size=len(tokenizer),
        word_dim=config.word_dim if vectors is None else vectors.shape[1],
        heads=config.heads,
        head_dim=config.head_dim,
        layers=config.layers,
        scheme=config.model,  # type: ignore[arg-type]
        scheme_options=parse_scheme_options(config.scheme_options),
        dropout=config.dropout,
        max_tokens=config.title_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = HeadwiseForRecommendation(build_recommender_config(config, title_config))
    initialize_by_name(model, config.seed)
    if vectors is not None:
        embeddings: Any = model.get_input_embeddings()
        embeddings.weight.data.copy_(vectors)
    positions = scale_positions(model, config.position_scale, tokenizer.get_vocab(), word_counts)
    model.config.titles.position_scale = model.titles.encoder.config.position_scale
    notes.append(f"positions of words: {positions}")
    return model, tokenizer, [*notes, describe_model(model.config)]


def build_from_encoder(config: RecommendationConfig) -> tuple[HeadwiseForRecommendation, Any, list[str]]:
    """Build a model that encodes titles with a pretrained Hugging Face encoder."""
    check_from_scratch_options(config)
    available = is_available(config.model)
    options = {} if available else {"local_files_only": True}
    try:
        tokenizer = load_pretrained(AutoTokenizer, config.model, **options)
        encoder, _ = load_weights(AutoModel, config.model, dtype=torch.float32, **options)
    except UserError:
        raise
    except Exception as error:  # libraries raise many types for damaged files
        raise unavailable_error(config.model, error, available=available) from None
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
    max_length = max_input_length(encoder, tokenizer)
    if config.title_length > max_length:
        raise UserError(f"--title-length {config.title_length}: this model reads at most {max_length} tokens")
    if encoder.config.pad_token_id is None:
        encoder.config.pad_token_id = tokenizer.pad_token_id
    model = HeadwiseForRecommendation(build_recommender_config(config, encoder.config))
    new_names = [name for name, _ in model.named_parameters() if not name.startswith("titles.encoder.")]
    initialize_by_name(model, config.seed, new_names)
    model.titles.encoder = encoder
    notes = [f"titles by {Path(config.model).name}", *describe_scheme(encoder), describe_model(model.config)]
    return model, tokenizer, notes


def build_recommender_config(config: RecommendationConfig, title_config: Any) -> RecommenderConfig:
    scheme: Any = config.news_scheme or (config.model if is_scheme(config.model) else "distance-aware")
    return RecommenderConfig(
        titles=title_config,
        scheme=scheme,
        scheme_options=parse_scheme_options(config.scheme_options) if scheme == config.model else None,
        heads=config.heads,
        head_dim=config.head_dim,
        layers=config.layers,
        dropout=config.dropout,
        history=config.history,
        causal=config.causal,
        pooling=config.pooling,
    )


def describe_model(config: RecommenderConfig) -> str:
    """Return a note about the encoders of a model."""
    words = getattr(config.titles, "scheme", config.titles.model_type)
    order = ", causal" if config.causal else ""
    return f"words by {words}, clicked news by {config.scheme}{order}, users by {config.pooling} pooling"
