"""Guides from the `--guides` option, such as `--guides mdg pdg@6=0.01`."""

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset

from headwise import guides
from headwise.errors import UserError
from headwise.guidance import guiding
from headwise.guides import Dependency, Guide
from headwise.guides.dependency import align_arcs, load_parser
from headwise.integrations.fusion import fuse_to_record, fusion_report
from headwise.tasks import Examples
from headwise.training.core.config import option_name
from headwise.training.core.pretrained import is_scheme
from headwise.training.text.config import GUIDE_OPTIONS, TextConfig, is_automatic
from headwise.training.text.encoding import MIN_PROGRESS_ROWS, TextEncoder, no_progress_bars

logger = logging.getLogger(__name__)

#: A guide's name, layers and weight: mdg, mdg=0.01, mdg@6, mdg@0,1,-1=auto.
GUIDE_PATTERN = re.compile(r"(?P<name>[^=@]+)(@(?P<layers>-?\d+(,-?\d+)*))?(=(?P<weight>.+))?")

#: Guides whose term is a sum over heads, which `--guide-reduction` scales.
HEAD_GUIDES = ("mdg", "pdg")

#: Number of training texts from which `pmi` counts co-occurrences.
MAX_COUNTED_TEXTS = 10_000


@dataclass(frozen=True)
class GuideOption:
    """One value of `--guides`: a guide, its weight, and its layers, or None for the guide's default layers."""

    name: str
    weight: float | Literal["auto"]
    layers: list[int] | None


def build_guides(config: TextConfig, model: Any, encoder: TextEncoder, examples: Examples) -> list[Guide]:
    """Build the guides of a run.

    Raises:
        UserError: a guide does not exist, its weight is not a number, or the model cannot be guided.
    """
    if config.guides and is_scheme(config.model):
        raise UserError("--guides requires a Hugging Face model; models trained from scratch cannot be guided yet")
    for name in GUIDE_OPTIONS:
        if not config.guides and getattr(config, name) != config.default_value(name):
            raise UserError(f"{option_name(name)} requires --guides")
    if config.guide_share is not None and not any(is_automatic(text) for text in config.guides):
        raise UserError("--guide-share requires a guide with an automatic weight, such as --guides mdg")
    run_guides = [
        build_guide(config, text, model.config.num_hidden_layers, encoder, examples) for text in config.guides
    ]
    if run_guides:
        fuse_to_record(model)
        try:
            with guiding(model, run_guides, example=encoder.example_batch(examples.splits["train"])):
                pass
        except (ValueError, LookupError) as error:
            raise UserError(f"--guides {' '.join(config.guides)}: {str(error).strip()}") from None
    return run_guides


def build_guide(config: TextConfig, text: str, num_layers: int, encoder: TextEncoder, examples: Examples) -> Guide:
    """Build a guide from one value of `--guides`, with the run's reduction and schedule.

    Raises:
        UserError: the value is invalid, or the guide cannot be built.
    """
    option = parse_guide(text, num_layers)
    guide_class, build_arguments = GUIDES[option.name]
    share: dict[str, Any] = {} if config.guide_share is None else {"share": config.guide_share}
    reduction: dict[str, Any] = {"reduction": config.guide_reduction} if option.name in HEAD_GUIDES else {}
    try:
        return guide_class(
            option.weight,
            layers=option.layers,
            schedule=config.guide_schedule,
            **share,
            **reduction,
            **build_arguments(encoder, examples),
        )
    except (ValueError, ImportError) as error:
        raise UserError(f"--guides {text}: {error}") from None


def parse_guide(text: str, num_layers: int | None = None) -> GuideOption:
    """Parse one value of `--guides`.

    Args:
        text: the value.
        num_layers: the number of the model's layers; None if it is unknown.

    Raises:
        UserError: the value is invalid.

    Example:
        >>> parse_guide("pdg@6=0.01", num_layers=12)
        GuideOption(name='pdg', weight=0.01, layers=[6])
    """
    match = GUIDE_PATTERN.fullmatch(text)
    name, weight_text = (match["name"], match["weight"] or "auto") if match else (text, "auto")
    if match is None or name not in GUIDES:
        nearest = difflib.get_close_matches(name, GUIDES, n=1)
        question = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"--guides {text}: unknown guide {name!r}; expected one of {', '.join(GUIDES)}{question}")
    try:
        weight: Any = "auto" if weight_text == "auto" else float(weight_text)
    except ValueError:
        weight = -1.0
    if weight != "auto" and not weight >= 0:
        raise UserError(f"--guides {text}: the weight must be a number of at least 0, or auto")
    layers = [int(layer) for layer in match["layers"].split(",")] if match["layers"] else None
    for layer in layers or ():
        if num_layers is not None and not -num_layers <= layer < num_layers:
            raise UserError(f"--guides {text}: the model has {num_layers} layers, 0 to {num_layers - 1}")
    return GuideOption(name, weight, layers)


def check_parser(encoder: TextEncoder) -> dict[str, Any]:
    """Check that texts can be parsed. The guide itself needs no arguments.

    Raises:
        ValueError: texts are encoded in parts, to which parses cannot be aligned.
        ImportError: spaCy or its model is not installed.
    """
    if encoder.long_text not in ("truncate", "extend") or encoder.label_type == "tokens":
        raise ValueError("dependency applies to texts that are encoded as a whole (--long-text truncate or extend)")
    load_parser()
    return {}


def add_arcs(encoded: Dataset, rows: Dataset, encoder: TextEncoder, path: Path) -> Dataset:
    """Add the arcs of dependency parses to the tokens of training texts, for the guide `dependency`.

    Args:
        encoded: the tokens.
        rows: the texts.
        encoder: the encoder of the texts.
        path: the file of the result.
    """
    logger.info("  parsing %s training texts for the guide dependency", f"{len(rows):,}")
    nlp = load_parser()
    names = [name for name in ("text", "pair") if name in rows.column_names]

    def parse(batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        texts = rows[indices]
        parses = list(zip(*(nlp.pipe(texts[name]) for name in names), strict=True))
        tokenized = encoder.tokenizer(
            *(texts[name] for name in names),
            truncation=True,
            max_length=encoder.max_length,
            return_offsets_mapping=True,
        )
        arcs = [
            align_arcs(row_parses, tokenized["offset_mapping"][i], tokenized.sequence_ids(i))
            for i, row_parses in enumerate(parses)
        ]
        return {key: [row[key] for row in arcs] for key in Dependency.input_keys}

    with no_progress_bars() if len(rows) < MIN_PROGRESS_ROWS else nullcontext():
        return encoded.map(
            parse,
            batched=True,
            with_indices=True,
            cache_file_name=str(path),
            load_from_cache_file=False,
            new_fingerprint=path.stem,
            desc="parsing",
        )


def describe_fused_layers(model: Any) -> list[str]:
    """Return a note about the attention layers that were fused so that guides can read them."""
    families = [layers.family for layers in fusion_report(model).layers]
    return [f"attention layers fused for guidance: {', '.join(families)}"] if families else []


def describe_guide(guide: Guide) -> str:
    """Return a note about a guide. It names the reduction, without which the weight has no meaning."""
    reduction = getattr(guide, "reduction", None)
    return f"guide {guide}" if reduction is None else f"guide {guide}, reduction {reduction}"


def iterate_tokens(encoder: TextEncoder, examples: Examples) -> Iterator[Sequence[int]]:
    """Iterate over the token ids of the first training texts."""
    batches = (encoder.encode(batch)["input_ids"] for batch in examples.splits["train"].iter(1000))
    return islice((ids for batch in batches for ids in batch), MAX_COUNTED_TEXTS)


#: The guides by their name: the class, and a function that returns its arguments besides the weight and the layers.
GUIDES: dict[str, tuple[type[Guide], Callable[[TextEncoder, Examples], dict[str, Any]]]] = {
    "mdg": (guides.MapDiscrimination, lambda encoder, examples: {}),
    "pdg": (guides.PatternDecorrelation, lambda encoder, examples: {}),
    "first": (guides.First, lambda encoder, examples: {}),
    "next": (guides.Next, lambda encoder, examples: {}),
    "previous": (guides.Previous, lambda encoder, examples: {}),
    "delimiter": (guides.Delimiter, lambda encoder, examples: {"tokens": [encoder.tokenizer.sep_token_id]}),
    "period": (guides.Period, lambda encoder, examples: {"tokens": [encoder.tokenizer.convert_tokens_to_ids(".")]}),
    "disagreement": (guides.Disagreement, lambda encoder, examples: {}),
    "dependency": (guides.Dependency, lambda encoder, examples: check_parser(encoder)),
    "pmi": (
        guides.MutualInformation,
        lambda encoder, examples: {
            "texts": iterate_tokens(encoder, examples),
            "ignore": encoder.tokenizer.all_special_ids,
        },
    ),
    "word-similarity": (guides.WordSimilarity, lambda encoder, examples: {"tokenizer": encoder.tokenizer}),
}
