"""`fuse_attention` and `unfuse_attention`: fused attention for models with relative positions."""

import copy
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise._compat import get_attn_implementation, set_attn_implementation
from headwise._scheme_loading import ATTN_IMPLEMENTATION
from headwise.attention.checks import disable_autocast
from headwise.integrations.fusion.attention import ALWAYS_FUSED
from headwise.integrations.fusion.family import FAMILY_MODULES, Family, families
from headwise.integrations.fusion.offloading import load_offloaded, modules_with_name
from headwise.integrations.fusion.report import fusion_report
from headwise.integrations.fusion.texts import text_example
from headwise.integrations.hf_attention import use_headwise_attention
from headwise.integrations.model_utils import (
    ExampleOutput,
    UnsupportedAttentionError,
    check_same_outputs,
    execution_device,
    pretrained_modules,
    run_example,
    unwrap_model,
)
from headwise.integrations.observing import observing
from headwise.integrations.scheme_layers import layers_with_scheme
from headwise.integrations.window_attention import has_window

#: The attribute of a module with the attention implementation that it had before `fuse_attention`.
_PREVIOUS = "_headwise_unfused_implementation"


def fuse_attention(
    model: nn.Module,
    *,
    example: Mapping[str, Any] | None = None,
    check: bool = True,
    verbose: bool = True,
    always: bool = False,
) -> nn.Module:
    """Replace the attention of a Hugging Face model with relative positions by headwise's fused attention.

    The fused layers have the same parameters under the same names. Checkpoints are loaded and saved as before, and any
    trainer trains them. The outputs are the same up to rounding, except those of padding tokens in some models.
    Attention maps are not stored, so that memory grows linearly with the length, and on a GPU attention runs in fused
    kernels. Guides and inspection work with fused models.

    Args:
        model: a `PreTrainedModel` of a known family (T5, DeBERTa, …), or a module that contains one, such as a PEFT
            model. It is changed in place.
        example: a batch on which the outputs are compared with the original's; by default, random tokens or audio.
        check: whether to compare the outputs.
        verbose: print which layers were fused and what to expect, the text of `fusion_report`.
        always: whether to fuse short inputs, too. In some families, attention with N × N maps is faster for them on a
            GPU, but takes more memory in training. By default, the fused layers use it there.

    Returns:
        The model.

    Raises:
        UnsupportedAttentionError: the model has no attention layer of a known family, or a setting that cannot be
            fused.
        ValueError: the model has a position scheme of `retrofit` or a window of `set_window`, or it failed on the
            example.
        RuntimeError: the outputs differ from the original's. The model is left unchanged.

    Example:
        >>> import headwise as hw
        >>> from transformers import DebertaV2Config, DebertaV2Model
        >>> tiny = DebertaV2Config(
        ...     vocab_size=30, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        ...     relative_attention=True, position_buckets=4, max_relative_positions=8, pos_att_type=["c2p", "p2c"],
        ... )
        >>> model = hw.fuse_attention(DebertaV2Model(tiny), verbose=False)
        >>> type(model.encoder.layer[0].attention.self).__name__
        'FusedDisentangledSelfAttention'
    """
    inner = unwrap_model(model)
    if layers_with_scheme(inner):
        raise ValueError(f"{type(inner).__name__} has a position scheme; headwise.remove_scheme(model) removes it")
    if any(has_window(module) for module in inner.modules()):
        raise ValueError(f"{type(inner).__name__} has a window; headwise.set_window(model, None) removes it")
    new = [family for family in families().values() if _modules(inner, family.layers)]
    if not new and not is_fused(inner):
        raise UnsupportedAttentionError(
            inner,
            f"has no attention layers that headwise can fuse. Known families: {', '.join(families())}. Models without "
            "relative positions need no fusion: use attn_implementation='sdpa' or 'flash_attention_2'",
        )
    if new:
        _fuse(inner, new, example, check=check)
    for module in _fused_layers(inner):
        if always:
            module.__dict__[ALWAYS_FUSED] = True
        else:
            module.__dict__.pop(ALWAYS_FUSED, None)
    if verbose:
        print(fusion_report(inner))
    return model


def unfuse_attention(model: nn.Module) -> nn.Module:
    """Restore a model's own attention layers after `fuse_attention`, and return the model.

    Example:
        >>> import headwise as hw
        >>> from transformers import T5Config, T5EncoderModel
        >>> tiny = T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2)
        >>> model = hw.unfuse_attention(hw.fuse_attention(T5EncoderModel(tiny), verbose=False))
        >>> hw.fusion_report(model).layers
        ()
    """
    inner = unwrap_model(model)
    for family in families().values():
        originals = {fused: original for original, fused in family.replacements.items()}
        for module in _modules(inner, originals):
            module.__dict__.pop(ALWAYS_FUSED, None)
            _set_class(module, originals[type(module)])
    for module in pretrained_modules(inner):
        if _PREVIOUS not in module.__dict__:
            continue
        previous = module.__dict__.pop(_PREVIOUS)
        if get_attn_implementation(module.config) == ATTN_IMPLEMENTATION:  # unless it was set to another one since
            set_attn_implementation(module.config, previous)
    return model


def fuse_to_record(model: nn.Module) -> tuple[str, ...]:
    """Fuse a model for guides and inspection if they cannot read its own attention layers.

    Models that use transformers' `AttentionInterface`, unknown models and models that cannot be fused are left as they
    are.

    Returns:
        The names of the families whose layers were fused.
    """
    parts = {part for module in model.modules() for part in type(module).__module__.split(".")}
    if parts.isdisjoint(FAMILY_MODULES.values()):  # importing all families takes seconds
        return ()
    inner = unwrap_model(model)
    new = [family for family in families().values() if _modules(inner, family.layers)]
    if not new:
        return ()
    try:
        if not _is_recordable(inner, new):
            fuse_attention(model, verbose=False)
    except (ValueError, RuntimeError):  # the caller reports what is not supported
        return ()
    return tuple(layers.family for layers in fusion_report(inner).layers)


def _is_recordable(model: PreTrainedModel, known: list[Family]) -> bool:
    """Return whether an observer sees the attention of a model's own layers."""
    observed: list[nn.Module] = []
    with use_headwise_attention(model), observing(model, lambda layer, _: observed.append(layer)):
        part = _part_with_layers(model, known[0].layers)
        _run_exactly(part, build_example(part, known[0]))
    return bool(observed)


def build_example(model: Any, family: Family) -> dict[str, Any]:
    """Return random inputs of a model with layers of a family."""
    return (family.build_example or text_example)(model)


def is_fused(model: nn.Module) -> bool:
    """Return whether a model has fused attention layers. Families are not imported, which takes seconds."""
    return any(type(module).__module__.startswith(f"{__package__}.") for module in model.modules())


def _fuse(model: PreTrainedModel, new: list[Family], example: Mapping[str, Any] | None, *, check: bool) -> None:
    """Fuse the layers of some families. If anything fails, the model is left unchanged."""
    parts = {family.name: _part_with_layers(model, family.layers) for family in new}
    for family in new:
        reason = family.why_unsupported(parts[family.name].config) if family.why_unsupported is not None else ""
        if reason:
            raise UnsupportedAttentionError(model, reason)
    examples: list[tuple[PreTrainedModel, Mapping[str, Any]]] = []
    if check and example is not None:
        examples = [(model, example)]
    elif check:
        examples = [(parts[family.name], build_example(parts[family.name], family)) for family in new]
    with load_offloaded(modules_with_name(model, {name for family in new for name in family.read_directly})):
        before = [_run_exactly(part, batch) for part, batch in examples]
    for family in new:
        if family.uses_mask_interface:
            _use_headwise_masks(model, family)
        for module in _modules(model, family.replacements):
            _set_class(module, family.replacements[type(module)])
            module.__dict__[ALWAYS_FUSED] = True  # the check compares the fused attention
    try:
        for (part, batch), expected in zip(examples, before, strict=True):
            _check_part(model, part, batch, expected)
    except BaseException:
        unfuse_attention(model)
        raise


def _check_part(
    model: PreTrainedModel, part: PreTrainedModel, batch: Mapping[str, Any], expected: ExampleOutput
) -> None:
    """Raise RuntimeError if a fused part of a model gives other outputs than expected.

    In float16 and bfloat16, rounding errors can exceed the tolerance, for example in T5, whose scores are not scaled.
    A copy in float32 then decides.
    """
    try:
        check_same_outputs(model, expected, _run_exactly(part, batch))
    except RuntimeError:
        if part.dtype not in (torch.float16, torch.bfloat16) or any(p.is_meta for p in part.parameters()):
            raise
        copied = copy.deepcopy(part).float()
        batch = {name: x.float() if _is_floating_point(x) else x for name, x in batch.items()}
        actual = _run_exactly(copied, batch)
        check_same_outputs(model, _run_exactly(unfuse_attention(copied), batch), actual)


def _is_floating_point(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def fused_example(model: PreTrainedModel) -> tuple[PreTrainedModel, dict[str, Any]] | None:
    """Return a part of a model that contains fused layers, and random inputs of it; None if no layer is fused."""
    if not is_fused(model):
        return None
    for family in families().values():
        fused_classes = dict.fromkeys(family.layers.values())
        if _modules(model, fused_classes):
            part = _part_with_layers(model, fused_classes)
            return part, build_example(part, family)
    return None


def _part_with_layers(model: PreTrainedModel, classes: Mapping[type[nn.Module], Any]) -> PreTrainedModel:
    """Return the innermost part of a model with all layers of some classes, such as the encoder of a transducer.

    The family's example is an input of this part. The whole model may need other inputs, too.
    """
    num_layers = len(_modules(model, classes))
    return [part for part in pretrained_modules(model) if len(_modules(part, classes)) == num_layers][-1]


def _set_class(module: nn.Module, new_class: type[nn.Module]) -> None:
    """Assign the class of a module.

    accelerate's hooks (`device_map`, offloading) store the method `forward` in the module. It is replaced, too.
    """
    old_class = type(module)
    module.__class__ = new_class
    for name in ("forward", "_old_forward"):
        if getattr(module.__dict__.get(name), "__func__", None) is old_class.forward:
            setattr(module, name, MethodType(new_class.forward, module))


def _run_exactly(model: Any, batch: Mapping[str, Any] | None) -> ExampleOutput:
    """Run a model on an example in its own precision, without autocast."""
    with disable_autocast(execution_device(model).type):
        return run_example(model, batch)


def _modules(model: nn.Module, classes: Mapping[type[nn.Module], Any]) -> list[nn.Module]:
    """Return the modules of some classes. Subclasses, which may compute something else, are not among them."""
    return [module for module in model.modules() if type(module) in classes]


def _fused_layers(model: nn.Module) -> list[nn.Module]:
    """Return the fused attention layers of a model."""
    return _modules(model, {fused: None for family in families().values() for fused in family.layers.values()})


def _use_headwise_masks(model: PreTrainedModel, family: Family) -> None:
    """Let the parts of a model that contain layers of a family build their masks with headwise's implementation."""
    for module in pretrained_modules(model):
        if not _modules(module, family.layers):
            continue
        previous = get_attn_implementation(module.config)
        if previous != ATTN_IMPLEMENTATION:  # an inner part may have the configuration of an outer one
            module.__dict__[_PREVIOUS] = previous
            set_attn_implementation(module.config, ATTN_IMPLEMENTATION)
