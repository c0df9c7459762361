"""Guides from the `--guides` option, such as `--guides mdg pdg@6=0.01`."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from headwise import guides
from headwise.errors import UserError
from headwise.guidance import guiding
from headwise.guides import Guide
from headwise.tasks import Examples
from headwise.training.core.pretrained import is_scheme
from headwise.training.text.config import TextConfig
from headwise.training.text.encoding import TextEncoder

#: A guide's name, layers and weight: mdg, mdg=0.01, mdg@6, mdg@0,1,-1=auto.
GUIDE_PATTERN = re.compile(r"(?P<name>[^=@]+)(@(?P<layers>-?\d+(,-?\d+)*))?(=(?P<weight>.+))?")

#: Number of training texts from which `pmi` counts co-occurrences.
MAX_COUNTED_TEXTS = 10_000


def build_guides(config: TextConfig, model: Any, encoder: TextEncoder, examples: Examples) -> list[Guide]:
    """Build the guides of a run.

    Raises:
        UserError: a guide does not exist, its weight is not a number, or the model cannot be guided.
    """
    if config.guides and is_scheme(config.model):
        raise UserError("--guides requires a Hugging Face model; models trained from scratch cannot be guided yet")
    factories = guide_factories(encoder, examples)
    run_guides = [parse_guide(option, factories, model.config.num_hidden_layers) for option in config.guides]
    if run_guides:
        try:
            with guiding(model, run_guides, example=encoder.example_batch(examples.splits["train"])):
                pass
        except (ValueError, LookupError) as error:
            raise UserError(f"--guides {' '.join(config.guides)}: {str(error).strip()}") from None
    return run_guides


def guide_factories(encoder: TextEncoder, examples: Examples) -> dict[str, Callable[..., Guide]]:
    """Return functions that build each guide from a weight and layers."""
    tokenizer = encoder.tokenizer
    return {
        "mdg": guides.MapDiscrimination,
        "pdg": guides.PatternDecorrelation,
        "first": guides.First,
        "next": guides.Next,
        "previous": guides.Previous,
        "delimiter": lambda weight, **options: guides.Delimiter(weight, tokens=[tokenizer.sep_token_id], **options),
        "period": lambda weight, **options: guides.Period(
            weight, tokens=[tokenizer.convert_tokens_to_ids(".")], **options
        ),
        "disagreement": guides.Disagreement,
        "pmi": lambda weight, **options: guides.MutualInformation(
            weight, texts=iterate_tokens(encoder, examples), ignore=tokenizer.all_special_ids, **options
        ),
        "word-similarity": lambda weight, **options: guides.WordSimilarity(weight, tokenizer=tokenizer, **options),
    }


def parse_guide(option: str, factories: dict[str, Callable[..., Guide]], num_layers: int) -> Guide:
    """Build a guide from its option.

    Args:
        option: one value of `--guides`.
        factories: see `guide_factories`.
        num_layers: the number of the model's layers.

    Raises:
        UserError: the option is invalid.
    """
    match = GUIDE_PATTERN.fullmatch(option)
    name, weight_text = (match["name"], match["weight"] or "auto") if match else (option, "auto")
    if match is None or name not in factories:
        raise UserError(f"--guides {option}: unknown guide {name!r}; expected one of {', '.join(factories)}")
    try:
        weight: Any = "auto" if weight_text == "auto" else float(weight_text)
    except ValueError:
        weight = -1.0
    if weight != "auto" and not weight >= 0:
        raise UserError(f"--guides {option}: the weight must be a number of at least 0, or auto")
    layers = [int(layer) for layer in match["layers"].split(",")] if match["layers"] else None
    for layer in layers or ():
        if not -num_layers <= layer < num_layers:
            raise UserError(f"--guides {option}: the model has {num_layers} layers, 0 to {num_layers - 1}")
    try:
        return factories[name](weight, layers=layers)
    except (ValueError, ImportError) as error:
        raise UserError(f"--guides {option}: {error}") from None


def iterate_tokens(encoder: TextEncoder, examples: Examples) -> Iterator[Sequence[int]]:
    """Iterate over the token ids of the first training texts."""
    batches = (encoder.encode(batch)["input_ids"] for batch in examples.splits["train"].iter(1000))
    return islice((ids for batch in batches for ids in batch), MAX_COUNTED_TEXTS)
