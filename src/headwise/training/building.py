"""The model of a run: one of ours, or a Hugging Face model that is trained further."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
)

from headwise import guidance
from headwise.guidance import Guide
from headwise.mistakes import Mistake
from headwise.models import HeadwiseConfig, build_tokenizer, count_words, initialise_by_name, read_vectors
from headwise.models.configuration import SCHEMES
from headwise.tasks import Examples, Task
from headwise.training.inputs import Reader, longest_allowed
from headwise.training.settings import Settings

PROBLEMS = {
    "classification": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
    "ranking": "single_label_classification",
}
RETROFITS = {"distance-aware": "DistanceAware", "rpr": "RelativePositions"}


@dataclass(frozen=True)
class Built:
    """A model, what turns rows into its inputs, and what there is to say about them."""

    model: PreTrainedModel
    reader: Reader
    notes: list[str] = field(default_factory=list)


def is_ours(model: str) -> bool:
    """Whether a model's name is that of a scheme, and the model starts from scratch."""
    return model in SCHEMES


def build(settings: Settings, task: Task, examples: Examples) -> Built:
    """The model of a run, untrained.

    Raises:
        Mistake: a model that is not there, cannot be loaded, or cannot do what is asked.
    """
    return from_scratch(settings, task, examples) if is_ours(settings.model) else fine_tuned(settings, task, examples)


def from_scratch(settings: Settings, task: Task, examples: Examples) -> Built:
    if settings.retrofit is not None:
        raise Mistake(f"--retrofit is for trained models; --model {settings.model} has its scheme from the start")
    max_length = settings.max_length or task.from_scratch.max_length
    counts = count_words(texts(examples.splits["train"]))
    framed = settings.pooling == "cls" and not task.pair
    tokenizer = build_tokenizer(counts, framed=framed, max_tokens=max_length)
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
    model: Any = class_for(task).from_config(config)
    initialise_by_name(model, settings.seed)
    if vectors is not None:
        model.get_input_embeddings().weight.data.copy_(vectors)
    return Built(model, Reader(tokenizer, task.kind, pair, max_length, hierarchy), notes)


def fine_tuned(settings: Settings, task: Task, examples: Examples) -> Built:
    for option, given in (("--vectors", settings.vectors), ("--hierarchy", settings.hierarchy)):
        if given is not None:
            raise Mistake(f"{option} is for models of ours ({', '.join(SCHEMES)}), not for --model {settings.model}")
    try:
        config = AutoConfig.from_pretrained(settings.model, **labels(task, examples))
        tokenizer = AutoTokenizer.from_pretrained(settings.model)
        model, info = class_for(task).from_pretrained(
            settings.model, config=config, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError) as error:
        raise unavailable(settings.model, error) from None
    max_length = min(settings.max_length or task.fine_tuning.max_length, *limits(settings, config, tokenizer))
    longest_allowed(max_length, model, tokenizer)
    new = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    initialise_by_name(model, settings.seed, new & dict(model.named_parameters()).keys())
    notes = [f"{len(new)} new parameter tensors, drawn by the seed: {', '.join(sorted(new))}"] if new else []
    if settings.retrofit is not None:
        guidance.retrofit(model, RETROFITS[settings.retrofit])
        count = sum(p.numel() for p in guidance.scheme_parameters(model))
        notes.append(f"{settings.retrofit} retrofitted: {count:,} parameters, neutral at the start")
    return Built(model, Reader(tokenizer, task.kind, "joint" if task.pair else None, max_length), notes)


def limits(settings: Settings, config: Any, tokenizer: Any) -> Iterator[int]:
    """What a model can read at most; no limit where the user asked for a length, which is then checked."""
    if settings.max_length is None:
        yield from (x for x in (getattr(config, "max_position_embeddings", None), tokenizer.model_max_length) if x)
    yield 10**9


def unavailable(name: str, error: Exception) -> Mistake:
    if Path(name).exists():
        return Mistake(f"--model {name}: {str(error).splitlines()[0]}")
    return Mistake(
        f"--model {name}: no such folder, and not to be had from the Hugging Face hub (no network, or no such model); "
        f"give a folder with config.json and model.safetensors, or one of {', '.join(SCHEMES)}"
    )


def class_for(task: Task) -> Any:
    return AutoModelForTokenClassification if task.kind == "tokens" else AutoModelForSequenceClassification


def labels(task: Task, examples: Examples) -> dict[str, Any]:
    """What a configuration says about labels."""
    names = examples.labels or ("rating",)
    found: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    return found | ({"problem_type": PROBLEMS[task.kind]} if task.kind in PROBLEMS else {})


def texts(rows: Dataset) -> Iterable[str]:
    """All texts of a split, a batch in memory at a time."""
    if "words" in rows.column_names:
        return (" ".join(words) for part in rows.select_columns(["words"]).iter(1000) for words in part["words"])
    names = [name for name in ("text", "pair") if name in rows.column_names]
    return (text for part in rows.select_columns(names).iter(1000) for name in names for text in part[name])


def guides_of(settings: Settings, tokenizer: Any) -> list[Guide]:
    """The guides that `--guides mdg pdg=0.01` names.

    Raises:
        Mistake: an unknown guide, or a weight that is no number.
    """
    made: dict[str, Any] = {
        "mdg": guidance.MapDiscrimination,
        "pdg": guidance.PatternDecorrelation,
        "first": guidance.First,
        "next": guidance.Next,
        "previous": guidance.Previous,
        "delimiter": lambda weight: guidance.Delimiter(weight, tokens=[tokenizer.sep_token_id]),
        "period": lambda weight: guidance.Period(weight, tokens=[tokenizer.convert_tokens_to_ids(".")]),
        "disagreement": guidance.Disagreement,
    }
    found = []
    for given in settings.guides:
        name, _, weight = given.partition("=")
        if name not in made:
            raise Mistake(f"--guides {given}: no guide {name!r}; there: {', '.join(made)}")
        try:
            found.append(made[name](float(weight) if weight not in ("", "auto") else "auto"))
        except ValueError:
            raise Mistake(f"--guides {given}: the weight must be a number of 0 or more, or auto") from None
    if found and is_ours(settings.model):
        raise Mistake("--guides are for Hugging Face models; one of ours cannot be guided yet")
    return found
