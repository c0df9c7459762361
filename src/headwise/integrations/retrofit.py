"""Position schemes for pretrained models: adding and removing."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from headwise._compat import get_attn_implementation, set_attn_implementation
from headwise._scheme_loading import ATTN_IMPLEMENTATION
from headwise.attention import DistanceAware, Rotary, Scheme
from headwise.integrations import peft_schemes
from headwise.integrations.fusion import is_fused
from headwise.integrations.hf_attention import use_headwise_attention
from headwise.integrations.indices import Indices, to_indices
from headwise.integrations.model_utils import (
    UnsupportedAttentionError,
    attn_implementations,
    check_same_outputs,
    fails_with_headwise,
    restore_attn_implementations,
    run_example,
    unwrap_model,
)
from headwise.integrations.recording import LayerRecord, RecordField, recording
from headwise.integrations.scheme_config import (
    SchemeConfig,
    build_schemes,
    check_options,
    find_layer,
    find_scheme_class,
    layer_names,
    remove_scheme_config,
    scheme_name,
    set_scheme_config,
)
from headwise.integrations.scheme_layers import attach_scheme, detach_scheme, layers_with_scheme, model_config
from headwise.integrations.window_attention import has_window

Part = Literal["encoder", "decoder", "both"]

#: Default options with which a scheme leaves the model's outputs unchanged until it is trained.
NEUTRAL_OPTIONS: dict[type[Scheme], dict[str, Any]] = {
    find_scheme_class("DistanceAware"): {"rectify": False, "w_std": 0.0},
    find_scheme_class("RelativePositions"): {"k": 16, "std": 0.0},
    find_scheme_class("T5Bias"): {"std": 0.0},
    find_scheme_class("Disentangled"): {"max_distance": 128, "std": 0.0},
}

#: The attribute of a retrofitted model with the attention implementations that it and its submodules had before.
_PREVIOUS = "_headwise_previous_implementations"


def retrofit(
    model: nn.Module,
    scheme: type[Scheme] | str = DistanceAware,
    *,
    layers: Indices | None = None,
    part: Part | None = None,
    example: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Add a position scheme to the self-attention of a pretrained Hugging Face model.

    Every self-attention layer gets its own scheme. The scheme's parameters belong to the model: any trainer trains
    them, `save_pretrained` saves them, and after `import headwise` transformers' own classes load them. With their
    default options, `DistanceAware`, `RelativePositions`, `T5Bias` and `Disentangled` leave the model's outputs
    unchanged until they are trained.

    Args:
        model: a `PreTrainedModel`, or a module that contains one, such as a PEFT model. It is changed in place.
        scheme: `DistanceAware`, `RelativePositions`, …, the name of such a class, or your own subclass of `Scheme`,
            which must be imported before a saved model is loaded.
        layers: the layers to change, an integer or several, numbered from 0 in the order in which they run; negative
            numbers count from the last. All by default.
        part: the part of an encoder-decoder model to change: `encoder` (default), `decoder` or `both`.
        example: a batch to find the attention layers with; transformers' dummy inputs by default.
        options: arguments of the scheme, except `heads` and `head_dim`, which are those of the model.

    Returns:
        The model.

    Raises:
        UnsupportedAttentionError: the model's attention does not go through transformers' `AttentionInterface`, or uses
            a feature that headwise does not support.
        TypeError: `layers` are not integers, or an option cannot be saved.
        ValueError: the scheme, the part or a layer does not exist, the model has a scheme already, or the scheme is
            `Rotary`, which is for models without positions.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> sum(p.numel() for p in hw.scheme_parameters(hw.retrofit(model, hw.DistanceAware)))
        8
    """
    scheme_class = find_scheme_class(scheme) if isinstance(scheme, str) else scheme
    if not isinstance(scheme_class, type) or not issubclass(scheme_class, Scheme):
        raise TypeError(f"scheme must be a class such as headwise.DistanceAware, or its name; got {scheme!r}")
    if issubclass(scheme_class, Rotary):
        raise ValueError(
            "Rotary rotates queries and keys, and pretrained models have positions already; train a model from scratch "
            "with it, or retrofit another scheme"
        )
    check_options(options)
    inner = unwrap_model(model)
    if is_fused(inner):
        raise ValueError(f"{type(inner).__name__} has fused attention; headwise.unfuse_attention(model) removes it")
    if layers_with_scheme(inner):
        raise ValueError(f"{type(inner).__name__} already has a scheme; headwise.remove_scheme(model) removes it")
    attention_layers = find_attention_layers(inner, example, part)
    names = layer_names(inner)
    must_be_neutral = is_neutral(scheme_class) and not options
    config: SchemeConfig = {
        "scheme": scheme_name(scheme_class),
        "options": NEUTRAL_OPTIONS.get(scheme_class, {}) | options,
        "layers": {
            names[layer]: {"heads": heads, "head_dim": head_dim}
            for layer, heads, head_dim in _select(attention_layers, layers)
        },
    }
    before = run_example(inner, example) if must_be_neutral else None
    add_schemes(model, config)
    if before is not None:
        try:
            check_same_outputs(inner, before, run_example(inner, example))
        except Exception:
            remove_scheme(model)
            raise
    return model


def is_neutral(scheme: type[Scheme]) -> bool:
    """Return whether a scheme with its default options leaves a model's outputs unchanged until it is trained."""
    return scheme in NEUTRAL_OPTIONS


def add_schemes(model: nn.Module, config: SchemeConfig) -> None:
    """Add schemes to a model that has none.

    Raises:
        ValueError: the model does not have one of the layers.
    """
    inner = unwrap_model(model)
    missing = [name for name in config["layers"] if find_layer(inner, name) is None]
    if missing:
        raise ValueError(f"{type(inner).__name__} has no layer {missing[0]}: the scheme is for another model")
    built = build_schemes(inner, config)
    inner.__dict__[_PREVIOUS] = attn_implementations(inner)
    for layer, scheme in built:
        attach_scheme(layer, scheme)
    inner.set_attn_implementation(ATTN_IMPLEMENTATION)
    for layer, _ in built:  # in EncoderDecoderModel, these are not the configurations of the parts
        set_attn_implementation(model_config(layer), ATTN_IMPLEMENTATION)
    set_scheme_config(inner.config, config)
    peft_schemes.save_schemes_with_adapters(model)


def remove_scheme(model: nn.Module) -> nn.Module:
    """Remove the schemes that `retrofit` added, and return the model, with the attention implementation it had before.

    A model that was loaded with schemes gets transformers' default implementation.
    """
    inner = unwrap_model(model)
    for layer in layers_with_scheme(inner):
        detach_scheme(layer)
    remove_scheme_config(inner.config)
    peft_schemes.forget_schemes(model)
    previous = inner.__dict__.pop(_PREVIOUS, None)
    if previous is not None:
        restore_attn_implementations(previous)
    elif get_attn_implementation(inner.config) == ATTN_IMPLEMENTATION:
        inner.set_attn_implementation(inner.get_correct_attn_implementation(None))
    if has_window(inner):  # it needs headwise's attention, with and without a scheme
        inner.set_attn_implementation(ATTN_IMPLEMENTATION)
        inner.config.attn_implementation = ATTN_IMPLEMENTATION
    return model


class _LayerFinder:
    """Records the layers that compute attention, with the number of heads and their width."""

    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.layers: dict[nn.Module, tuple[int, int]] = {}

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        self.layers.setdefault(layer, (record.q.shape[1], record.q.shape[3]))


def find_attention_layers(
    model: PreTrainedModel, example: Mapping[str, Any] | None = None, part: Part | None = None
) -> list[tuple[nn.Module, int, int]]:
    """Return a model's self-attention layers in the order in which they run, with heads and head width.

    Raises:
        UnsupportedAttentionError: no layer uses transformers' `AttentionInterface`, or the model fails with headwise's
            attention.
    """
    if part is not None and not model.config.is_encoder_decoder:
        raise ValueError(f"part is for encoder-decoder models, which {type(model).__name__} is not")
    if part not in (None, "encoder", "decoder", "both"):
        raise ValueError(f"part must be one of encoder, decoder, both; got {part!r}")
    finder = _LayerFinder()
    try:
        with use_headwise_attention(model), recording(model, finder, part):
            run_example(model, example)
    except UnsupportedAttentionError:
        raise
    except ValueError as error:
        run_example(model, example)  # fails, too, if the example is at fault
        raise fails_with_headwise(model, error) from error
    if not finder.layers:
        raise UnsupportedAttentionError(model)
    return [(layer, *shape) for layer, shape in finder.layers.items()]


def _select(attention_layers: list[Any], layers: Indices | None) -> list[Any]:
    """Return the attention layers with some indices, in the order in which they run."""
    count = len(attention_layers)
    indices = to_indices("layers", layers)
    if indices is None:
        return attention_layers
    if any(not -count <= i < count for i in indices):
        raise ValueError(f"layers is {list(indices)}, but the model has {count} attention layers, 0 to {count - 1}")
    return [attention_layers[i] for i in sorted({i % count for i in indices})]
