"""Initial values that depend on a parameter's name and a seed, and on nothing else.

Two models that differ in one thing, such as their scheme, then start alike in everything that they share: what is
measured between them is that difference, not the luck of the draw.
"""

import hashlib
from collections.abc import Collection

import torch
from transformers import PreTrainedModel

from headwise.errors import UserError


def initialise_by_name(model: PreTrainedModel, seed: int, names: Collection[str] | None = None) -> None:
    """Draw a model's parameters anew, each module's from its own name and the seed, by the model's own rule.

    The global random state is left as it was.

    Args:
        model: ours or any other Hugging Face model, on the CPU.
        seed: the same seed and name give the same values.
        names: which parameters, by default all. Those of a new head on a pre-trained model are the `missing_keys` of
            `from_pretrained(…, output_loading_info=True)`.

    Raises:
        UserError: a name that the model does not have, or a model on another device, where numbers are drawn otherwise.

    Example:
        >>> from headwise.models import HeadwiseConfig, HeadwiseModel, initialise_by_name
        >>> sizes = {"vocab_size": 50, "word_dim": 8, "heads": 2, "head_dim": 4}
        >>> plain, distant = (HeadwiseModel(HeadwiseConfig(scheme=s, **sizes)) for s in ("plain", "distance-aware"))
        >>> for model in (plain, distant):
        ...     initialise_by_name(model, seed=1)
        >>> bool((plain.embeddings.words.weight == distant.embeddings.words.weight).all())
        True
    """
    parameters = dict(model.named_parameters())
    chosen = set(parameters if names is None else names)
    if not chosen <= parameters.keys():
        raise UserError(f"{type(model).__name__} has no parameter {sorted(chosen - parameters.keys())[0]!r}")
    if any(parameters[name].device.type != "cpu" for name in chosen):
        raise UserError("initialise a model before it moves to another device: there a seed means other numbers")
    before = torch.get_rng_state()
    with torch.no_grad():
        for place, module in reversed(list(model.named_modules())):  # a part before what it is part of
            own = {f"{place}.{name}".lstrip("."): p for name, p in module.named_parameters(recurse=False)}
            if chosen.isdisjoint(own):
                continue
            kept = {name: p.clone() for name, p in own.items() if name not in chosen}
            for parameter in own.values():
                parameter._is_hf_initialized = False
            torch.default_generator.manual_seed(seed_of(seed, place))
            model._init_weights(module)
            for name, value in kept.items():
                own[name].copy_(value)
    torch.set_rng_state(before)


def seed_of(seed: int, name: str) -> int:
    """A number from 0 to 2⁶³ − 1 for a seed and a name, the same on every machine."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
