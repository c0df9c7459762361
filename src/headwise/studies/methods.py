"""Methods that a study compares, and their controls."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from headwise.errors import UserError
from headwise.scheme_names import ModelSchemeName

#: Names of the position schemes of models; `none` has no positions.
SCHEMES: tuple[str, ...] = get_args(ModelSchemeName)

#: The separator of a method's name and the settings of a trial.
SEPARATOR = ": "

#: Options that configure a scheme and have no effect without one.
SCHEME_OPTIONS = (
    "positions",
    "position_scale",
    "scheme_options",
    "decoder_scheme",
    "news_scheme",
    "k",
    "tables",
    "relative",
)

#: Options of guides and retrofits, which have no effect without them.
TREATMENT_OPTIONS = ("scheme_learning_rate", "guide_reduction", "guide_schedule", "guide_share")


@dataclass(frozen=True)
class Method:
    """A method of a study.

    Args:
        name: its name in tables and directories.
        overrides: the options in which it differs from the options that all methods share.
    """

    name: str
    overrides: Mapping[str, Any]


def parse_method(text: str) -> Method:
    """Parse the short form of a method: a model, guides and `retrofit:SCHEME`, joined by `+`.

    Raises:
        UserError: a part is empty, or there are two retrofits.

    Example:
        >>> parse_method("bert-base-uncased+mdg+pdg=0.01").overrides
        {'model': 'bert-base-uncased', 'guides': ('mdg', 'pdg=0.01')}
        >>> parse_method("bert-base-uncased+retrofit:rpr").overrides
        {'model': 'bert-base-uncased', 'retrofit': 'rpr'}
    """
    model, *parts = text.split("+")
    retrofits = [part.removeprefix("retrofit:") for part in parts if part.startswith("retrofit:")]
    guides = tuple(part for part in parts if not part.startswith("retrofit:"))
    if not all((model, *parts, *retrofits)) or len(retrofits) > 1:
        raise UserError(
            f'--methods {text}: expected MODEL, MODEL+GUIDE+GUIDE, MODEL+retrofit:SCHEME, or NAME="--model MODEL …"'
        )
    overrides: dict[str, Any] = {"model": model}
    if retrofits:
        overrides["retrofit"] = retrofits[0]
    if guides:
        overrides["guides"] = guides
    return Method("+".join([model_label(model), *parts]), overrides)


def model_label(model: str) -> str:
    """Return a model's name in tables: for a local model the name of its directory, without the path.

    >>> model_label("bert-base-uncased"), model_label(__file__.rpartition("/")[0])
    ('bert-base-uncased', 'studies')
    """
    return Path(model).name if Path(model).is_dir() else model


def add_controls(methods: Sequence[Method], shared: Mapping[str, Any]) -> tuple[list[Method], dict[str, str]]:
    """Add the controls that are missing.

    Args:
        methods: the methods to compare.
        shared: the options of all methods, unless a method overrides them.

    Returns:
        All methods, added controls first, and a mapping from each method to the name of its control, if it has one.

    Raises:
        UserError: two methods have the same name.
    """
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f'--methods: {name!r} appears twice; NAME="…" gives a method another name')
    methods = [use_scheme_option(method, shared) for method in methods]
    all_methods, controls = list(methods), {}
    for method in methods:
        control = build_control(method, shared)
        if control is None:
            continue
        existing = next((other for other in all_methods if has_same_options(other, control, shared)), None)
        if existing is None:
            existing = Method(unused_name(control.name, (other.name for other in all_methods)), control.overrides)
            all_methods.insert(sum(other not in methods for other in all_methods), existing)
        controls[method.name] = existing.name
    return all_methods, controls


def build_control(method: Method, shared: Mapping[str, Any]) -> Method | None:
    """Return the same method without its treatment: without guides and retrofit, or with the scheme `none`.

    Returns:
        The control, or None if the method has no treatment.
    """
    options = {**shared, **method.overrides}
    overrides = dict(method.overrides)
    if options.get("guides") or options.get("retrofit"):
        overrides |= {name: empty for name, empty in (("guides", ()), ("retrofit", None)) if options.get(name)}
        for name in TREATMENT_OPTIONS:
            overrides.pop(name, None)
        is_short_form = "+" in method.name and method.name.startswith(f"{model_label(str(options.get('model')))}+")
        return Method(model_label(str(options["model"])) if is_short_form else "unchanged", overrides)
    scheme_option = "scheme" if "scheme" in options else "model"
    if options.get(scheme_option) in SCHEMES and options.get(scheme_option) != "none":
        unused = (*SCHEME_OPTIONS, *TREATMENT_OPTIONS)
        overrides = {name: value for name, value in overrides.items() if name not in unused}
        return Method("none", overrides | {scheme_option: "none"})
    return None


def use_scheme_option(method: Method, option_names: Container[str]) -> Method:
    """Move a scheme's name from `model` to `scheme` for tasks that have both options, such as translation.

    Args:
        method: a method whose `model` may be the name of a scheme.
        option_names: the options of the task.
    """
    overrides = dict(method.overrides)
    if "scheme" in option_names and overrides.get("model") in SCHEMES:
        overrides["scheme"] = overrides.pop("model")
    return Method(method.name, overrides)


def has_same_options(method: Method, other: Method, shared: Mapping[str, Any]) -> bool:
    """Return whether two methods differ in nothing but their names."""
    options, other_options = ({**shared, **each.overrides} for each in (method, other))
    names = options.keys() | other_options.keys()
    return all((options.get(name) or None) == (other_options.get(name) or None) for name in names)


def unused_name(name: str, existing_names: Iterable[str]) -> str:
    """Return the name, with a number appended if it is taken."""
    existing = set(existing_names)
    return next(x for x in (name, *(f"{name}-{i}" for i in range(2, 1000))) if x not in existing)
