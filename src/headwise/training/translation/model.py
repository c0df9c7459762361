"""The translator of a run, untrained, and its tokenizer."""

from collections.abc import Iterable
from typing import Any

from datasets import Dataset

from headwise.models import HeadwiseForTranslation, HeadwiseTranslatorConfig, build_subwords, initialise_by_name
from headwise.training.translation.config import TranslationConfig
from headwise.training.translation.decoding import BEYOND


def subwords(settings: TranslationConfig, train: Dataset) -> Any:
    """The tokenizer of both languages, learnt from the training pairs."""
    return build_subwords(texts(train), size=settings.vocabulary, max_tokens=settings.max_length)


def texts(rows: Dataset) -> Iterable[str]:
    """All sentences of both languages, a thousand pairs in memory at a time."""
    return (
        text
        for part in rows.select_columns(["source", "target"]).iter(1000)
        for side in ("source", "target")
        for text in part[side]
    )


def build(settings: TranslationConfig, tokenizer: Any) -> HeadwiseForTranslation:
    """The model of a run; its initial values depend on the seed and on names alone."""
    sizes = {name: getattr(settings, name) for name in ("layers", "heads", "head_dim", "feedforward", "dropout")}
    config = HeadwiseTranslatorConfig.preset(
        settings.model,
        vocab_size=len(tokenizer),
        scheme=settings.scheme,
        scheme_options=tables(settings) if settings.scheme == "rpr" else None,
        decoder_scheme=settings.decoder_scheme,
        decoder_scheme_options=tables(settings) if settings.decoder_scheme == "rpr" else None,
        positions=settings.positions,
        norm_first=settings.norm == "before",
        max_tokens=settings.max_length + BEYOND,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{name: size for name, size in sizes.items() if size is not None},
    )
    model = HeadwiseForTranslation(config)
    initialise_by_name(model, settings.seed)
    return model


def tables(settings: TranslationConfig) -> dict[str, Any]:
    """What the user says about tables of relative positions."""
    options: dict[str, Any] = {}
    if settings.k is not None:
        options["k"] = settings.k
    if settings.tables is not None:
        options["per_head"] = settings.tables == "heads"
    if settings.relative != "both":
        options |= {"keys": settings.relative == "keys", "values": settings.relative == "values"}
    return options
