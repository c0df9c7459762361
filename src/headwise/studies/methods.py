"""What a study compares: methods, each a name and the settings that set it apart, and the controls they need."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.errors import UserError

#: Models of ours, as `headwise.models` has them; it takes seconds to import. `none` knows no positions at all.
SCHEMES = ("none", "plain", "rpr", "transformer-xl", "tener", "distance-aware")

#: Settings that say more about a scheme, and mean nothing without it.
OF_SCHEMES = ("positions", "scheme_options", "decoder_scheme", "news_scheme", "k", "tables", "relative")


@dataclass(frozen=True)
class Method:
    """One way to learn a task.

    Args:
        name: what the user calls it.
        settings: where it differs from what all methods of the study share.
    """

    name: str
    settings: Mapping[str, Any]


def parse_method(text: str) -> Method:
    """A method in short: a model, then guides, and `retrofit:SCHEME`, with + between.

    Raises:
        UserError: a part is empty, or there are two retrofits.

    Example:
        >>> method("bert-base-uncased+mdg+pdg=0.01").settings
        {'model': 'bert-base-uncased', 'guides': ('mdg', 'pdg=0.01')}
        >>> method("bert-base-uncased+retrofit:rpr").settings
        {'model': 'bert-base-uncased', 'retrofit': 'rpr'}
    """
    model, *parts = text.split("+")
    retrofits = [part.removeprefix("retrofit:") for part in parts if part.startswith("retrofit:")]
    guides = tuple(part for part in parts if not part.startswith("retrofit:"))
    if not all((model, *parts, *retrofits)) or len(retrofits) > 1:
        raise UserError(
            f'--methods {text}: expected MODEL, MODEL+GUIDE+GUIDE, MODEL+retrofit:SCHEME, or NAME="--model MODEL …"'
        )
    settings: dict[str, Any] = {"model": model}
    if retrofits:
        settings["retrofit"] = retrofits[0]
    if guides:
        settings["guides"] = guides
    return Method("+".join([called(model), *parts]), settings)


def called(model: str) -> str:
    """What tables and pages call a model: of one in a folder the folder's name, since paths are nobody else's business.

    >>> called("bert-base-uncased"), called(__file__.rpartition("/")[0])
    ('bert-base-uncased', 'studies')
    """
    return Path(model).name if Path(model).is_dir() else model


def with_controls(methods: Sequence[Method], shared: Mapping[str, Any]) -> tuple[list[Method], dict[str, str]]:
    """The methods, and before them the controls that are missing.

    Args:
        methods: as the user named them.
        shared: the settings of all methods, where a method says nothing else.

    Returns:
        All methods, and of each one that has a control that control's name.

    Raises:
        UserError: two methods of one name.
    """
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f'--methods: {name!r} is there twice; NAME="…" gives a method another name')
    methods = [placed(one, shared) for one in methods]
    found, controls = list(methods), {}
    for one in methods:
        wanted = control_of(one, shared)
        if wanted is None:
            continue
        there = next((other for other in found if same(other, wanted, shared)), None)
        if there is None:
            there = Method(unused(wanted.name, (other.name for other in found)), wanted.settings)
            found.insert(sum(other not in methods for other in found), there)
        controls[one.name] = there.name
    return found, controls


def control_of(method: Method, shared: Mapping[str, Any]) -> Method | None:
    """The same without what is to be shown to help: no positions instead of a scheme, no guides, no retrofit."""
    settings = {**shared, **method.settings}
    own = dict(method.settings)
    if settings.get("guides") or settings.get("retrofit"):
        own |= {name: empty for name, empty in (("guides", ()), ("retrofit", None)) if settings.get(name)}
        own.pop("scheme_learning_rate", None)
        plain = "+" in method.name and method.name.startswith(f"{called(str(settings.get('model')))}+")
        return Method(called(str(settings["model"])) if plain else "unchanged", own)
    where = "scheme" if "scheme" in settings else "model"
    if settings.get(where) in SCHEMES and settings.get(where) != "none":
        kept = {name: value for name, value in own.items() if name not in OF_SCHEMES}
        return Method("none", kept | {where: "none"})
    return None


def placed(method: Method, known: Container[str]) -> Method:
    """The same for a task that has schemes apart from models, as translation does.

    Args:
        method: whose model may be the name of a scheme.
        known: the task's settings.
    """
    own = dict(method.settings)
    if "scheme" in known and own.get("model") in SCHEMES:
        own["scheme"] = own.pop("model")
    return Method(method.name, own)


def same(one: Method, other: Method, shared: Mapping[str, Any]) -> bool:
    """Whether two methods do the same, whatever they are called."""
    first, second = ({**shared, **method.settings} for method in (one, other))
    names = first.keys() | second.keys()
    return all((first.get(name) or None) == (second.get(name) or None) for name in names)


def unused(name: str, names: Iterable[str]) -> str:
    taken = set(names)
    return next(x for x in (name, *(f"{name}-{i}" for i in range(2, 1000))) if x not in taken)
