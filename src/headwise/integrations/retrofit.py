"""Position schemes for pretrained models: adding, removing, saving and loading."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from headwise.attention import DistanceAware, Scheme, schemes
from headwise.integrations.hf_attention import ATTN_IMPLEMENTATION, SCHEME, use_headwise_attention
from headwise.integrations.model_utils import (
    UnsupportedAttentionError,
    check_same_outputs,
    run_example,
    unwrap_model,
)
from headwise.integrations.recording import LayerRecord, RecordField, recording
from headwise.small_files import read_json

#: Scheme classes by class name, which is what a saved model's configuration contains.
SCHEMES: dict[str, type[Scheme]] = {scheme.__name__: scheme for scheme in schemes.SCHEMES.values()}

#: Default options with which a scheme leaves the model's outputs unchanged until it is trained.
NEUTRAL_OPTIONS: dict[str, dict[str, Any]] = {
    "DistanceAware": {"rectify": False, "w_std": 0.0},
    "RelativePositions": {"k": 16, "std": 0.0},
}

ADAPTER_WEIGHTS, ADAPTER_CONFIG = "headwise.safetensors", "headwise.json"


def retrofit(
    model: nn.Module,
    scheme: type[Scheme] | str = DistanceAware,
    *,
    layers: Sequence[int] | None = None,
    example: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Add a position scheme to the self-attention of a pretrained Hugging Face model.

    Every self-attention layer gets its own scheme; in an encoder-decoder model, only those of the encoder. The scheme's
    parameters belong to the model: any trainer trains them, `save_pretrained` saves them, and
    `headwise.from_pretrained` loads them. With their default options, `DistanceAware` and `RelativePositions` leave the
    model's outputs unchanged until they are trained.

    Args:
        model: a `PreTrainedModel`, or a module that contains one. It is changed in place.
        scheme: `DistanceAware`, `RelativePositions`, …, or the name of the class.
        layers: the layers to change, numbered from 0 in the order in which they run; all by default.
        example: a batch to find the attention layers with; transformers' dummy inputs by default.
        options: arguments of the scheme, except `heads` and `head_dim`, which are those of the model.

    Returns:
        The model.

    Raises:
        UnsupportedAttentionError: the model's attention does not go through transformers' `AttentionInterface`.
        ValueError: the scheme or a layer does not exist, or the model has a scheme already.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> sum(p.numel() for p in hw.scheme_parameters(hw.retrofit(model, hw.DistanceAware)))
        8
    """
    name = scheme.__name__ if isinstance(scheme, type) else scheme
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, as a class or by name; got {name!r}")
    inner = unwrap_model(model)
    if any(True for _ in scheme_modules(inner)):
        raise ValueError(f"{type(inner).__name__} already has a scheme; headwise.remove_scheme(model) removes it")
    attention_layers = find_attention_layers(inner, example)
    num_layers = len(attention_layers)
    indices = range(num_layers) if layers is None else layers
    if not indices or any(not isinstance(i, int) or not -num_layers <= i < num_layers for i in indices):
        raise ValueError(
            f"layers is {list(indices)}, but the model has {num_layers} attention layers, 0 to {num_layers - 1}"
        )
    indices = sorted({i % num_layers for i in indices})
    is_neutral = name in NEUTRAL_OPTIONS and not options
    options = NEUTRAL_OPTIONS.get(name, {}) | options
    before = run_example(inner, example) if is_neutral else None
    for i in indices:
        layer, heads, head_dim = attention_layers[i]
        parameter = next(layer.parameters())
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        layer.add_module(
            SCHEME,
            schemes.make_scheme(SCHEMES[name], heads=heads, head_dim=head_dim, **options).to(parameter.device, dtype),
        )
    inner.set_attn_implementation(ATTN_IMPLEMENTATION)
    inner.config.headwise = {"scheme": name, "layers": indices, "options": options}
    if before is not None:
        try:
            check_same_outputs(inner, before, run_example(inner, example))
        except Exception:
            remove_scheme(inner)
            raise
    return model


def remove_scheme(model: nn.Module) -> nn.Module:
    """Remove the schemes that `retrofit` added, and return the model, which uses torch's kernels again."""
    inner = unwrap_model(model)
    for layer in [module for module in inner.modules() if hasattr(module, SCHEME)]:
        delattr(layer, SCHEME)
    inner.set_attn_implementation("sdpa")
    if hasattr(inner.config, "headwise"):
        del inner.config.headwise
    return model


def scheme_modules(model: nn.Module) -> Iterator[Scheme]:
    """Return the schemes that `retrofit` added. Those of headwise's own models are not among them."""
    return (module._modules[SCHEME] for module in model.modules() if SCHEME in module._modules)  # type: ignore[misc]


def scheme_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that `retrofit` added, for a separate optimizer group."""
    return [parameter for scheme in scheme_modules(model) for parameter in scheme.parameters()]


def from_pretrained(
    path: str | Path, auto_class: Any = AutoModel, *, example: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Load a model that `save_pretrained` saved, with the schemes that `retrofit` added, if it has any.

    Args:
        path: a directory, or a name on the Hugging Face Hub.
        auto_class: the class to load with, such as `AutoModelForSequenceClassification`.
        example: see `retrofit`.
        options: arguments of `auto_class.from_pretrained`.

    Returns:
        What `auto_class.from_pretrained` returns: the model, or with `output_loading_info=True` the model and the
        report.
    """
    loaded = auto_class.from_pretrained(path, **({"use_safetensors": True} | options))
    model: PreTrainedModel = loaded[0] if isinstance(loaded, tuple) else loaded
    config = getattr(model.config, "headwise", None)
    if config is None:
        return loaded
    del model.config.headwise
    retrofit(model, config["scheme"], layers=config["layers"], example=example, **config["options"])
    weights: dict[str, Tensor] = {}
    for file in _weight_files(path, options):
        weights |= {name: x for name, x in load_file(file).items() if f".{SCHEME}." in name}
    _load_scheme_weights(model, _rename_weights(model, weights), path)
    if loaded is not model:  # the auto class reports the schemes' parameters as unexpected
        report = loaded[1]
        report["unexpected_keys"] = {name for name in report["unexpected_keys"] if f".{SCHEME}." not in name}
    return loaded


def save_adapter(model: nn.Module, directory: str | Path) -> None:
    """Save the schemes that `retrofit` added, without the model's weights: a few kilobytes."""
    inner = unwrap_model(model)
    config = getattr(inner.config, "headwise", None)
    if config is None or not scheme_parameters(inner):
        raise ValueError(f"{type(inner).__name__} has no scheme; headwise.retrofit(model, …) adds one")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: x.detach().contiguous().cpu() for name, x in inner.state_dict().items() if f".{SCHEME}." in name}
    save_file(weights, directory / ADAPTER_WEIGHTS)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapter(model: nn.Module, directory: str | Path, *, example: Mapping[str, Any] | None = None) -> nn.Module:
    """Add the schemes that `save_adapter` saved to a model, and return it. For `example` see `retrofit`."""
    directory = Path(directory)
    path = directory / ADAPTER_CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{directory} contains no {ADAPTER_CONFIG}, so it is not an adapter saved by headwise")
    config = read_json(path)
    retrofit(model, config["scheme"], layers=config["layers"], example=example, **config["options"])
    _load_scheme_weights(unwrap_model(model), load_file(directory / ADAPTER_WEIGHTS), directory)
    return model


class _LayerFinder:
    """Records the layers that compute attention, with the number of heads and their width."""

    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.layers: dict[nn.Module, tuple[int, int]] = {}

    def record(self, layer: nn.Module, record: LayerRecord) -> None:
        self.layers.setdefault(layer, (record.q.shape[1], record.q.shape[3]))


def find_attention_layers(
    model: PreTrainedModel, example: Mapping[str, Any] | None = None
) -> list[tuple[nn.Module, int, int]]:
    """Return a model's self-attention layers in the order in which they run, with heads and head width.

    Raises:
        UnsupportedAttentionError: no layer uses transformers' `AttentionInterface`.
    """
    finder = _LayerFinder()
    with use_headwise_attention(model), recording(model, finder):
        run_example(model, example)
    if not finder.layers:
        raise UnsupportedAttentionError(model)
    return [(layer, *shape) for layer, shape in finder.layers.items()]


def _weight_files(path: str | Path, options: dict[str, Any]) -> list[str]:
    """Return the safetensors files of a directory or a name on the Hub."""
    hub_options = {name: options[name] for name in ("subfolder", "revision", "token", "cache_dir") if name in options}
    index = cached_file(str(path), SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **hub_options)
    names = {SAFE_WEIGHTS_NAME}
    if index is not None:
        names = set(read_json(Path(index))["weight_map"].values())
    return [str(cached_file(str(path), name, **hub_options)) for name in sorted(names)]


def _rename_weights(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map saved names to the model's. transformers may save under older names; the order of layers is the same."""

    def layer_order(name: str) -> tuple[list[int], str]:
        layer, parameter = name.split(f".{SCHEME}.")
        return [int(number) for number in re.findall(r"\d+", layer)], parameter

    names = [name for name in model.state_dict() if f".{SCHEME}." in name]
    if len(names) != len(weights):
        return weights
    pairs = zip(sorted(names, key=layer_order), sorted(weights, key=layer_order), strict=True)
    return {name: weights[saved_name] for name, saved_name in pairs}


def _load_scheme_weights(model: PreTrainedModel, weights: dict[str, Tensor], source: str | Path) -> None:
    """Load the schemes' parameters, whether saved from the base model or from one with a head."""
    prefix = f"{model.base_model_prefix}."
    base_weights = {name.removeprefix(prefix): x for name, x in weights.items()}
    base_names = {name: name.removeprefix(prefix) for name in model.state_dict() if f".{SCHEME}." in name}
    missing = sorted(name for name, base_name in base_names.items() if base_name not in base_weights)
    if missing:
        raise ValueError(f"{source} contains no {missing[0]}: it was saved for another model or scheme")
    model.load_state_dict({name: base_weights[base_name] for name, base_name in base_names.items()}, strict=False)
