"""LoRA fine-tuning with PEFT: `--lora`.

Training updates the adapter and the newly initialized classification head. A finished run contains the merged model,
which needs no PEFT, and the adapter in the directory `adapter`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from headwise.errors import UserError, first_line
from headwise.training.core.pretrained import is_scheme
from headwise.training.text.config import TextConfig

ADAPTER = "adapter"

#: The default learning rate with LoRA is that of full fine-tuning times this factor.
LEARNING_RATE_FACTOR = 10


def check_lora_options(config: TextConfig) -> None:
    """Check that `--lora` can be used.

    Raises:
        UserError: another option excludes it, or PEFT is not installed.
    """
    if not config.lora:
        for name in ("lora_r", "lora_alpha", "lora_target_modules"):
            if getattr(config, name) != config.default_value(name):
                raise UserError(f"--{name.replace('_', '-')} requires --lora")
        return
    if is_scheme(config.model):
        raise UserError(
            f"--lora is for pretrained models, not for --model {config.model}, which is trained from scratch"
        )
    if config.retrofit is not None:
        raise UserError("--lora and --retrofit exclude each other: LoRA freezes the parameters that --retrofit adds")
    try:
        import peft  # noqa: F401
    except ImportError:
        raise UserError("--lora requires PEFT: pip install 'headwise[lora]'") from None


def check_target_modules(model: Any, names: Sequence[str]) -> None:
    """Check that a model has the linear layers that `--lora-target-modules` names, and that there is a default.

    Args:
        model: a Hugging Face model, with or without weights.
        names: the value of the option.

    Raises:
        UserError: a layer is missing, or no names are given and PEFT knows none for this type of model.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    encoder, prefix = model.base_model, model.base_model_prefix  # without the classification head
    linear = (nn.Linear, Conv1D)
    layers = [f"{prefix}.{name}" for name, module in encoder.named_modules() if isinstance(module, linear)]
    choices = f"the linear layers of this model are {', '.join(sorted({name.rpartition('.')[2] for name in layers}))}"
    model_type = model.config.model_type
    if not names and model_type not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise UserError(f"--lora: PEFT has no default for {model_type} models: add --lora-target-modules; {choices}")
    for target in names:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            raise UserError(f"--lora-target-modules {target}: no such linear layer; {choices}")


def add_lora(model: Any, config: TextConfig, new_parameters: Iterable[str]) -> tuple[Any, str]:
    """Wrap a model so that only low-rank updates and newly initialized modules are trained.

    Args:
        model: a Hugging Face model.
        config: the run's configuration.
        new_parameters: the names of newly initialized parameters, which are trained in full.

    Returns:
        The wrapped model and a note.

    Raises:
        UserError: PEFT does not know the modules to adapt, or the model does not have them.
    """
    from peft import LoraConfig, get_peft_model

    check_target_modules(model, config.lora_target_modules)
    options = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        target_modules=list(config.lora_target_modules) or None,
        modules_to_save=sorted({name.rpartition(".")[0] for name in new_parameters}) or None,
    )
    try:
        wrapped: Any = get_peft_model(model, options)
    except ValueError as error:
        reason = first_line(error)
        raise UserError(f"--lora: {reason}; name the linear layers to adapt with --lora-target-modules") from None
    trained, total = wrapped.get_nb_trainable_parameters()
    targets = sorted(next(iter(wrapped.peft_config.values())).target_modules)
    return wrapped, f"LoRA of rank {config.lora_r} in {', '.join(targets)}: {trained:,} of {total:,} parameters trained"


def merge_lora(model: Any, out_dir: Path, *, is_main_process: bool) -> Any:
    """Save the adapter to the run directory and return the model with the adapter merged into its weights."""
    if is_main_process:
        model.save_pretrained(out_dir / ADAPTER)
    return model.merge_and_unload()
