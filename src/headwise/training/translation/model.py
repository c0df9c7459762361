"""The untrained translator of a run and its tokenizer."""

from collections.abc import Iterable
from typing import Any

from datasets import Dataset

from headwise.models import HeadwiseForTranslation, HeadwiseTranslatorConfig, build_subwords, initialize_by_name
from headwise.training.translation.config import TranslationConfig

#: Maximum number of tokens of a translation beyond the length of its source, as in Vaswani et al. (2017).
MAX_EXTRA_TOKENS = 50


def train_tokenizer(config: TranslationConfig, train: Dataset) -> Any:
    """Train the subword tokenizer, which both languages share, on the training pairs."""
    return build_subwords(iterate_texts(train), size=config.vocabulary, max_tokens=config.max_length)


def iterate_texts(rows: Dataset) -> Iterable[str]:
    """Yield all sentences of both languages, with a thousand pairs in memory at a time."""
    return (
        text
        for chunk in rows.select_columns(["source", "target"]).iter(1000)
        for side in ("source", "target")
        for text in chunk[side]
    )


def build_model(config: TranslationConfig, tokenizer: Any) -> HeadwiseForTranslation:
    """Build the model of a run; its initial weights depend on the seed and the parameter names only."""
    sizes = {name: getattr(config, name) for name in ("layers", "heads", "head_dim", "feedforward", "dropout")}
    model_config = HeadwiseTranslatorConfig.preset(
        config.model,
        vocab_size=len(tokenizer),
        scheme=config.scheme,
        scheme_options=rpr_options(config) if config.scheme == "rpr" else None,
        decoder_scheme=config.decoder_scheme,
        decoder_scheme_options=rpr_options(config) if config.decoder_scheme == "rpr" else None,
        positions=config.positions,
        norm_first=config.norm == "before",
        max_tokens=config.max_length + MAX_EXTRA_TOKENS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **{name: size for name, size in sizes.items() if size is not None},
    )
    model = HeadwiseForTranslation(model_config)
    initialize_by_name(model, config.seed)
    return model


def rpr_options(config: TranslationConfig) -> dict[str, Any]:
    """Return the options of relative position representations that differ from the preset."""
    options: dict[str, Any] = {}
    if config.k is not None:
        options["k"] = config.k
    if config.tables is not None:
        options["per_head"] = config.tables == "heads"
    if config.relative != "both":
        options |= {"keys": config.relative == "keys", "values": config.relative == "values"}
    return options
