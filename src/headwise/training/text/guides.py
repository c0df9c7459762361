"""The guides that `--guides mdg pdg@6=0.01` names."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from headwise import guides
from headwise.errors import UserError
from headwise.guidance import guiding
from headwise.guides import Guide
from headwise.tasks import Examples
from headwise.training.text.config import TextConfig
from headwise.training.text.model import ModelBundle, is_ours

#: A guide's name, its layers and its weight: mdg, mdg=0.01, mdg@6, mdg@0,1,-1=auto.
GIVEN = re.compile(r"(?P<name>[^=@]+)(@(?P<layers>-?\d+(,-?\d+)*))?(=(?P<weight>.+))?")

#: So many training texts tell which tokens go together.
TEXTS_COUNTED = 10_000


def guides_of(settings: TextConfig, built: ModelBundle, examples: Examples) -> list[Guide]:
    """The guides of a run.

    Raises:
        UserError: an unknown guide, a weight that is no number, or a model that cannot be guided.
    """
    if settings.guides and is_ours(settings.model):
        raise UserError("--guides are for Hugging Face models; one of ours cannot be guided yet")
    known = known_guides(built, examples)
    found = [guide(given, known, built.model.config.num_hidden_layers) for given in settings.guides]
    if found:
        try:
            with guiding(built.model, found, example=built.reader.example(examples.splits["train"])):
                pass
        except (ValueError, LookupError) as error:
            raise UserError(f"--guides {' '.join(settings.guides)}: {str(error).strip()}") from None
    return found


def known_guides(built: ModelBundle, examples: Examples) -> dict[str, Callable[..., Guide]]:
    """What makes each guide, given a weight and layers."""
    tokenizer = built.reader.tokenizer
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
            weight, texts=counted(built, examples), ignore=tokenizer.all_special_ids, **options
        ),
        "word-similarity": lambda weight, **options: guides.WordSimilarity(weight, tokenizer=tokenizer, **options),
    }


def guide(given: str, known: dict[str, Callable[..., Guide]], count: int) -> Guide:
    """A guide as it was given, for a model of so many layers."""
    parts = GIVEN.fullmatch(given)
    name, weight = (parts["name"], parts["weight"] or "auto") if parts else (given, "auto")
    if parts is None or name not in known:
        raise UserError(f"--guides {given}: no guide {name!r}; there: {', '.join(known)}")
    try:
        number: Any = "auto" if weight == "auto" else float(weight)
    except ValueError:
        number = -1.0
    if number != "auto" and not number >= 0:
        raise UserError(f"--guides {given}: the weight must be a number of 0 or more, or auto")
    layers = [int(layer) for layer in parts["layers"].split(",")] if parts["layers"] else None
    for layer in layers or ():
        if not -count <= layer < count:
            raise UserError(f"--guides {given}: the model has {count} layers, 0 to {count - 1}")
    try:
        return known[name](number, layers=layers)
    except (ValueError, ImportError) as error:
        raise UserError(f"--guides {given}: {error}") from None


def counted(built: ModelBundle, examples: Examples) -> Iterator[Sequence[int]]:
    """The tokens of the first training texts."""
    parts = (built.reader.encode(part)["input_ids"] for part in examples.splits["train"].iter(1000))
    return islice((ids for part in parts for ids in part), TEXTS_COUNTED)
