"""Initial values that depend only on a parameter's name and a seed.

Two models that differ in one part, such as their scheme, start with the same values in all other parts. Differences
in their results are then not caused by the initialization.
"""

import hashlib
from collections.abc import Collection

import torch
from transformers import PreTrainedModel

from headwise.errors import UserError


def initialize_by_name(model: PreTrainedModel, seed: int, names: Collection[str] | None = None) -> None:
    """Initialize the parameters of a model with random numbers that depend only on the seed and the modules' names.

    Each module is initialized by the model's `_init_weights`. The global random state is not changed.

    Args:
        model: A headwise model or another Hugging Face model, on the CPU.
        seed: The seed; the same seed and name give the same values.
        names: The parameters to initialize (default: all). Those of a new head on a pre-trained model are the
            `missing_keys` of `from_pretrained(…, output_loading_info=True)`.

    Raises:
        UserError: The model has no such parameter, or is on another device, whose random numbers differ.

    Example:
        >>> from headwise.models import HeadwiseConfig, HeadwiseModel, initialize_by_name
        >>> sizes = {"vocab_size": 50, "word_dim": 8, "heads": 2, "head_dim": 4}
        >>> plain, rpr = (HeadwiseModel(HeadwiseConfig(scheme=name, **sizes)) for name in ("plain", "rpr"))
        >>> for model in (plain, rpr):
        ...     initialize_by_name(model, seed=1)
        >>> bool((plain.embeddings.words.weight == rpr.embeddings.words.weight).all())
        True
    """
    parameters = dict(model.named_parameters())
    selected = set(parameters if names is None else names)
    if not selected <= parameters.keys():
        raise UserError(f"{type(model).__name__} has no parameter {sorted(selected - parameters.keys())[0]!r}")
    if any(parameters[name].device.type != "cpu" for name in selected):
        raise UserError("initialize the model before moving it to another device: random numbers differ there")
    rng_state = torch.get_rng_state()
    with torch.no_grad():
        for path, module in reversed(list(model.named_modules())):  # submodules before their parents
            parameters_of_module = {
                f"{path}.{name}".lstrip("."): p for name, p in module.named_parameters(recurse=False)
            }
            if selected.isdisjoint(parameters_of_module):
                continue
            unchanged = {name: p.clone() for name, p in parameters_of_module.items() if name not in selected}
            for parameter in parameters_of_module.values():
                parameter._is_hf_initialized = False
            torch.default_generator.manual_seed(derive_seed(seed, path))
            model._init_weights(module)
            for name, value in unchanged.items():
                parameters_of_module[name].copy_(value)
    torch.set_rng_state(rng_state)


def derive_seed(seed: int, name: str) -> int:
    """Return an integer below 2⁶³ for a seed and a name, the same on every machine."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
