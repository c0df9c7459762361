"""Position schemes in models that are already trained."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from headwise.attention import DistanceAware, Plain, RelativePositions, Scheme, Tener, TransformerXL
from headwise.integrations.hf_attention import (
    NAME,
    SCHEME,
    UnsupportedAttentionError,
    compare,
    outputs_of,
    recording,
    unwrap_model,
    use_headwise_attention,
)
from headwise.integrations.recording import LayerRecord, RecordField

SCHEMES: dict[str, type[Scheme]] = {
    scheme.__name__: scheme for scheme in (DistanceAware, Plain, RelativePositions, Tener, TransformerXL)
}

#: With these a model starts as it was.
NEUTRAL: dict[str, dict[str, Any]] = {
    "DistanceAware": {"rectify": False, "w_spread": 0.0},
    "RelativePositions": {"k": 16, "spread": 0.0},
}

ADAPTER_FILE, ADAPTER_CONFIG = "headwise.safetensors", "headwise.json"


def retrofit(
    model: nn.Module,
    scheme: type[Scheme] | str = DistanceAware,
    *,
    layers: Sequence[int] | None = None,
    example: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Let a Hugging Face model attend by a position scheme from now on.

    Every self-attention layer (of an encoder and decoder, the encoder's) gets a scheme of its own, whose parameters
    belong to the model: any trainer trains them, `save_pretrained` saves them, `headwise.from_pretrained` loads them.
    `DistanceAware` and `RelativePositions` start
    neutral by default: the model's outputs are what they were, until it is trained.

    Args:
        model: a `PreTrainedModel`, or a module that contains one; it is changed in place.
        scheme: `DistanceAware`, `RelativePositions`, …, or its name.
        layers: which layers, by number from 0 in the order in which they run; all by default.
        example: a batch to find the attention layers with; by default transformers' own dummy inputs.
        options: the scheme's own arguments, apart from heads and head_dim, which the model knows.

    Returns:
        The model.

    Raises:
        NotThroughTheInterface: the model's attention never asks transformers' AttentionInterface.
        ValueError: an unknown scheme, a layer that is not there, or a model that has a scheme already.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2))
        >>> sum(p.numel() for p in hw.scheme_parameters(hw.retrofit(model, hw.DistanceAware)))
        8
    """
    name = scheme.__name__ if isinstance(scheme, type) else scheme
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, the class or its name; got {name!r}")
    inner = unwrap_model(model)
    if any(True for _ in scheme_modules(inner)):
        raise ValueError(f"{type(inner).__name__} has a scheme already; headwise.remove_scheme(model) takes it out")
    found = attention_layers(inner, example)
    count = len(found)
    chosen = range(count) if layers is None else layers
    if not chosen or any(not isinstance(i, int) or not -count <= i < count for i in chosen):
        raise ValueError(f"layers has {list(chosen)}, but the model has {count} attention layers: 0 to {count - 1}")
    chosen = sorted({i % count for i in chosen})
    neutral = name in NEUTRAL and not options
    options = NEUTRAL.get(name, {}) | options
    before = outputs_of(inner, example) if neutral else None
    for i in chosen:
        layer, heads, head_dim = found[i]
        reference = next(layer.parameters())
        double = reference.dtype == torch.float64
        added = _make(SCHEMES[name], heads, head_dim, options)
        layer.add_module(SCHEME, added.to(reference.device, torch.float64 if double else torch.float32))
    inner.set_attn_implementation(NAME)
    inner.config.headwise = {"scheme": name, "layers": chosen, "options": options}
    if before is not None:
        try:
            compare(inner, before, outputs_of(inner, example))
        except Exception:
            remove_scheme(inner)
            raise
    return model


def remove_scheme(model: nn.Module) -> nn.Module:
    """Take out what `retrofit` put in: the model attends by torch's kernels again."""
    inner = unwrap_model(model)
    for layer in [module for module in inner.modules() if hasattr(module, SCHEME)]:
        delattr(layer, SCHEME)
    inner.set_attn_implementation("sdpa")
    if hasattr(inner.config, "headwise"):
        del inner.config.headwise
    return model


def from_pretrained(
    path: str | Path, auto_class: Any = AutoModel, *, example: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Load a model that was retrofitted and saved by `save_pretrained`; any other loads as by its auto class.

    Args:
        path: a folder or a hub name.
        auto_class: such as `AutoModelForSequenceClassification`.
        example: see `retrofit`.
        options: as `auto_class.from_pretrained`.

    Returns:
        What `auto_class.from_pretrained` returns: the model, and with `output_loading_info=True` what was loaded.
    """
    loaded = auto_class.from_pretrained(path, **({"use_safetensors": True} | options))
    model: PreTrainedModel = loaded[0] if isinstance(loaded, tuple) else loaded
    settings = getattr(model.config, "headwise", None)
    if settings is None:
        return loaded
    del model.config.headwise
    retrofit(model, settings["scheme"], layers=settings["layers"], example=example, **settings["options"])
    weights: dict[str, Tensor] = {}
    for file in _weight_files(path, options):
        weights |= {name: x for name, x in load_file(file).items() if f".{SCHEME}." in name}
    _load(model, _by_the_models_names(model, weights), path)
    if loaded is not model:  # the schemes' parameters were strangers to the auto class
        info = loaded[1]
        info["unexpected_keys"] = {name for name in info["unexpected_keys"] if f".{SCHEME}." not in name}
    return loaded


def _by_the_models_names(model: PreTrainedModel, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was saved under the names of a model's first release, as transformers does it: layers keep their order."""

    def place(name: str) -> tuple[list[int], str]:
        layer, parameter = name.split(f".{SCHEME}.")
        return [int(number) for number in re.findall(r"\d+", layer)], parameter

    names = [name for name in model.state_dict() if f".{SCHEME}." in name]
    if len(names) != len(weights):
        return weights
    return {
        name: weights[saved] for name, saved in zip(sorted(names, key=place), sorted(weights, key=place), strict=True)
    }


def _weight_files(path: str | Path, options: dict[str, Any]) -> list[str]:
    """The safetensors files of a folder or hub name, one or several."""
    where = {name: options[name] for name in ("subfolder", "revision", "token", "cache_dir") if name in options}
    index = cached_file(str(path), SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False, **where)
    names = {SAFE_WEIGHTS_NAME}
    if index is not None:
        names = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
    return [str(cached_file(str(path), name, **where)) for name in sorted(names)]


def save_adapter(model: nn.Module, folder: str | Path) -> None:
    """Save only what `retrofit` added: a file of a few kilobytes, and how to put it into the same model again."""
    inner = unwrap_model(model)
    settings = getattr(inner.config, "headwise", None)
    if settings is None or not scheme_parameters(inner):
        raise ValueError(f"{type(inner).__name__} has no scheme: headwise.retrofit(model, …) gives it one")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: x.detach().contiguous().cpu() for name, x in inner.state_dict().items() if f".{SCHEME}." in name}
    save_file(weights, folder / ADAPTER_FILE)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_adapter(model: nn.Module, folder: str | Path, *, example: Mapping[str, Any] | None = None) -> nn.Module:
    """Put into a model what `save_adapter` saved; for example see `retrofit`."""
    folder = Path(folder)
    config = folder / ADAPTER_CONFIG
    if not config.exists():
        raise FileNotFoundError(f"{folder} holds no {ADAPTER_CONFIG}: it is no adapter that headwise saved")
    settings = json.loads(config.read_text(encoding="utf-8"))
    retrofit(model, settings["scheme"], layers=settings["layers"], example=example, **settings["options"])
    _load(unwrap_model(model), load_file(folder / ADAPTER_FILE), folder)
    return model


def scheme_modules(model: nn.Module) -> Iterator[Scheme]:
    """The schemes that `retrofit` put in; a model of ours has its own, which are no guests."""
    return (module._modules[SCHEME] for module in model.modules() if SCHEME in module._modules)  # type: ignore[misc]


def scheme_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that `retrofit` added, for an optimizer group of their own."""
    return [parameter for scheme in scheme_modules(model) for parameter in scheme.parameters()]


class _Finder:
    """Listens to which layers ask for attention, and with how many heads of which width."""

    is_recording, required_fields = True, frozenset[RecordField]()

    def __init__(self) -> None:
        self.found: dict[nn.Module, tuple[int, int]] = {}

    def record(self, layer: nn.Module, heard: LayerRecord) -> None:
        self.found.setdefault(layer, (heard.q.shape[1], heard.q.shape[3]))


def attention_layers(
    model: PreTrainedModel, example: Mapping[str, Any] | None = None
) -> list[tuple[nn.Module, int, int]]:
    """A model's self-attention layers in the order in which they run, with their heads and a head's width."""
    finder = _Finder()
    with use_headwise_attention(model), recording(model, finder):
        outputs_of(model, example)
    if not finder.found:
        raise UnsupportedAttentionError(model)
    return [(layer, *shape) for layer, shape in finder.found.items()]


def _make(scheme: Callable[..., Scheme], heads: int, head_dim: int, options: dict[str, Any]) -> Scheme:
    if scheme is Plain:
        return scheme(**options)
    if scheme is DistanceAware:
        return scheme(heads, **options)
    return scheme(heads, head_dim, **options)


def _load(model: PreTrainedModel, weights: dict[str, Tensor], where: str | Path) -> None:
    """Load the schemes' parameters, saved with the base model or with a head on it."""
    prefix = f"{model.base_model_prefix}."
    bare = {name.removeprefix(prefix): x for name, x in weights.items()}
    wanted = {name: name.removeprefix(prefix) for name in model.state_dict() if f".{SCHEME}." in name}
    missing = sorted(name for name, stripped in wanted.items() if stripped not in bare)
    if missing:
        raise ValueError(f"{where} holds no {missing[0]}: it was saved for another model or scheme")
    model.load_state_dict({name: bare[stripped] for name, stripped in wanted.items()}, strict=False)
