"""Longer inputs for pretrained encoders: position tables with more rows, and scaled rotary positions."""

import copy
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.integrations.model_utils import pretrained_modules, unwrap_model
from headwise.scheme_names import PositionExtension

#: The methods that apply to a table of position embeddings, and those that apply to rotary positions.
TABLE_EXTENSIONS: tuple[PositionExtension, ...] = ("tile", "interpolate", "repeat-last")
ROTARY_EXTENSIONS: tuple[PositionExtension, ...] = ("interpolate", "yarn")

#: The `rope_type` of transformers' configurations for each method.
ROPE_TYPES = {"interpolate": "linear", "yarn": "yarn"}

SUPPORTED = (
    "supported are encoders with a table of position embeddings (BERT, RoBERTa, XLM-R, DistilBERT, ELECTRA, ALBERT, "
    "MPNet, …) and models with rotary positions (ModernBERT, EuroBERT, …)"
)


def extend_positions(
    model: nn.Module, length: int, *, positions: PositionExtension | None = None, tokenizer: Any = None
) -> nn.Module:
    """Make a pretrained Hugging Face encoder read longer inputs.

    The model gets position embeddings for `length` tokens and is otherwise unchanged. Inputs of the old length give the
    same outputs, except with `interpolate` and `yarn`. It is saved and loaded as any other model. Fine-tune it on long
    texts before you use it. Call this function before the optimizer is built, and before or after `retrofit`.

    Args:
        model: a `PreTrainedModel`, or a module that contains one. It is changed in place.
        length: the number of tokens of an input, with special tokens.
        positions: how new positions are computed. For a table of position embeddings: `tile` (default) repeats the
            table, `interpolate` stretches it, `repeat-last` repeats its last row. For rotary positions: `interpolate`
            (default) divides positions by the factor of the extension, `yarn` scales the frequencies as YaRN does.
            Rotary positions of sliding-window layers stay as they are.
        tokenizer: the model's tokenizer, whose `model_max_length` is set.

    Returns:
        The model.

    Raises:
        TypeError: `length` is not an integer, or there is no Hugging Face model.
        ValueError: the model reads more than `length` tokens already, its positions cannot be extended, or `positions`
            does not apply to it.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
        >>> hw.extend_positions(model, 2048).config.max_position_embeddings
        2048
    """
    if isinstance(length, bool) or not isinstance(length, int):
        raise TypeError(f"length must be an integer, got {length!r}")
    inner = unwrap_model(model)
    positions = choose_extension(inner, positions)
    previous = max_positions(inner)
    if length < previous:
        raise ValueError(
            f"{type(inner).__name__} reads {previous:,} tokens already; length must be more, got {length:,}"
        )
    if length > previous:
        check_blocks(inner, length)
        tables = find_tables(inner)
        if tables:
            extend_tables(inner, tables, length, positions)
        else:
            scale_rotary(inner, length, positions)
    if tokenizer is not None:
        tokenizer.model_max_length = length
    return model


def choose_extension(model: PreTrainedModel, positions: PositionExtension | None = None) -> PositionExtension:
    """Return how a model's positions are extended: as requested, or the default of the model.

    Raises:
        ValueError: the positions of the model cannot be extended, or not by this method.
    """
    if positions is not None and positions not in get_args(PositionExtension):
        raise ValueError(f"positions must be one of {', '.join(get_args(PositionExtension))}; got {positions!r}")
    name = type(model).__name__
    if has_unlimited_positions(model):
        raise ValueError(
            f"{name} has no position embeddings that can be extended: its relative positions have no limit; set "
            "model_max_length of the tokenizer"
        )
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder model, whose positions cannot be extended; {SUPPORTED}")
    if find_tables(model):
        kind, choices = "a table of position embeddings", TABLE_EXTENSIONS
    elif rotary_modules(model):
        kind, choices = "rotary positions", ROTARY_EXTENSIONS
    elif any(is_wrapped(getattr(module, "position_embeddings", None)) for module in model.modules()):
        raise ValueError(
            f"{name} has position embeddings in a wrapper, such as that of PEFT; call extend_positions before they are "
            "wrapped"
        )
    else:
        raise ValueError(f"{name} has no position embeddings that can be extended; {SUPPORTED}")
    if positions is not None and positions not in choices:
        raise ValueError(f"{name} has {kind}; positions must be {' or '.join(choices)}, got {positions}")
    return positions or choices[0]


def max_positions(model: PreTrainedModel) -> int:
    """Return the number of tokens that a model has positions for."""
    tables = find_tables(model)
    if not tables:
        return int(model.config.max_position_embeddings)
    return min(table.num_embeddings - padding_offset(table) for _, table in tables)


def find_tables(model: PreTrainedModel) -> list[tuple[nn.Module, nn.Embedding]]:
    """Return a model's tables of position embeddings, each with the module that it belongs to.

    Most models have one. LUKE has one for words and one for entities, VisualBERT one for words and one for parts of
    images. Positions of DeBERTa and others, whose attention
    depends on `max_position_embeddings`, are not absolute.
    """
    rows = getattr(model.config, "max_position_embeddings", None)
    if getattr(model.config, "relative_attention", False):
        return []
    names = ("position_embeddings", "visual_position_embeddings")
    tables = [(module, getattr(module, name, None)) for module in model.modules() for name in names]
    return [
        (module, table) for module, table in tables if isinstance(table, nn.Embedding) and table.num_embeddings == rows
    ]


def is_wrapped(table: Any) -> bool:
    """Whether a module contains an embedding, as wrappers of PEFT do, and is none."""
    if not isinstance(table, nn.Module) or isinstance(table, nn.Embedding):
        return False
    return any(isinstance(module, nn.Embedding) for module in table.modules())


def check_blocks(model: PreTrainedModel, length: int) -> None:
    """Check the length of a model with block-sparse attention: BigBird pads its inputs to whole blocks."""
    block_size = getattr(model.config, "block_size", None)
    if getattr(model.config, "attention_type", None) == "block_sparse" and block_size and length % block_size:
        raise ValueError(
            f"{type(model).__name__} reads blocks of {block_size} tokens; length must be a multiple, got {length:,}"
        )


def has_unlimited_positions(model: Any) -> bool:
    """Whether a model has relative positions only and reads inputs of any length, as DeBERTa, T5 and XLNet do."""
    if any(isinstance(getattr(module, "position_embeddings", None), nn.Embedding) for module in model.modules()):
        return False
    config = model.config
    is_t5 = hasattr(config, "relative_attention_num_buckets") and not hasattr(config, "max_position_embeddings")
    return is_t5 or bool(getattr(config, "relative_attention", False)) or getattr(config, "model_type", None) == "xlnet"


def padding_offset(table: nn.Embedding) -> int:
    """Return the number of rows before that of the first token: RoBERTa counts positions from `padding_idx` + 1."""
    return 0 if table.padding_idx is None else table.padding_idx + 1


def extend_tables(
    model: PreTrainedModel, tables: list[tuple[nn.Module, nn.Embedding]], length: int, positions: PositionExtension
) -> None:
    """Give tables rows for `length` tokens, and adapt the buffers and configurations that depend on their size."""
    previous = max_positions(model)
    for embeddings, table in tables:
        extend_table(embeddings, table, previous, length, positions)
    set_max_positions(model, tables[0][1].num_embeddings)


def extend_table(
    embeddings: nn.Module, table: nn.Embedding, previous: int, length: int, positions: PositionExtension
) -> None:
    """Give a table rows for `length` tokens instead of `previous`, and adapt the buffers that depend on its size."""
    offset, old_rows = padding_offset(table), table.num_embeddings
    with torch.no_grad():
        padding, tokens, unused = table.weight.detach().split([offset, previous, old_rows - offset - previous])
        table.weight.data = torch.cat([padding, extend_rows(tokens, length, positions), unused])
    table.weight.grad = None
    table.num_embeddings = rows = len(table.weight)
    for name, buffer in list(embeddings.named_buffers(recurse=False)):
        if buffer.dim() == 2 and buffer.shape[-1] == old_rows:
            is_index = name == "position_ids"
            new = torch.arange(rows, device=buffer.device) if is_index else buffer.new_zeros(rows)
            setattr(embeddings, name, new.to(buffer.dtype).expand(1, -1))


def extend_rows(rows: Tensor, length: int, positions: PositionExtension) -> Tensor:
    """Return a table of `length` rows.

    Args:
        rows: the position embeddings of the model, (rows, width).
        length: the number of rows of the result, at least that of `rows`.
        positions: how rows are computed.

    Example:
        >>> [extend_rows(torch.tensor([[0.0], [1.0]]), 3, x).flatten().tolist() for x in TABLE_EXTENSIONS]
        [[0.0, 1.0, 0.0], [0.0, 0.5, 1.0], [0.0, 1.0, 1.0]]
    """
    if positions == "interpolate":
        dtype = torch.promote_types(rows.dtype, torch.float32)
        stretched = F.interpolate(rows.to(dtype).T[None], size=length, mode="linear", align_corners=True)
        return stretched[0].T.to(rows.dtype).contiguous()
    index = torch.arange(length, device=rows.device)
    return rows[index % len(rows) if positions == "tile" else index.clamp(max=len(rows) - 1)]


def rotary_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return a model's modules that compute rotary positions from its configuration, by name."""
    if not getattr(model.config, "rope_parameters", None) or not hasattr(model.config, "max_position_embeddings"):
        return {}
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "rope_type") and hasattr(module, "config")
    }


def scale_rotary(model: PreTrainedModel, length: int, positions: PositionExtension) -> None:
    """Scale the rotary positions of a model, by the parameters that transformers has for it.

    Raises:
        ValueError: the model's positions are scaled by another method already.
    """
    previous = int(model.config.max_position_embeddings)
    parameters = copy.deepcopy(model.config.rope_parameters)
    is_nested = "rope_type" not in parameters
    by_layer_type = parameters if is_nested else {"full_attention": parameters}
    for layer_type, values in by_layer_type.items():
        if values is None or "sliding" in layer_type or "chunked" in layer_type:
            continue
        rope_type = values["rope_type"]
        if rope_type not in ("default", ROPE_TYPES[positions]):
            raise ValueError(
                f"{type(model).__name__} has rotary positions of the type {rope_type} already, which positions="
                f"{positions!r} cannot extend"
            )
        values["rope_type"] = ROPE_TYPES[positions]
        values["factor"] = values.get("factor", 1.0) * length / previous
        if positions == "yarn":
            values.setdefault("original_max_position_embeddings", previous)
    set_max_positions(model, length, rope_parameters=parameters)
    for name, module in rotary_modules(model).items():
        device = next(module.buffers()).device
        rebuilt: Any = type(module)(module.config)
        model.set_submodule(name, rebuilt.to(device))


def set_max_positions(model: PreTrainedModel, rows: int, **values: Any) -> None:
    """Set the number of positions, and other values, in the configurations of a model and its submodules."""
    previous = model.config.max_position_embeddings
    for module in pretrained_modules(model):
        if getattr(module.config, "max_position_embeddings", None) == previous:
            for name, value in {"max_position_embeddings": rows, **values}.items():
                setattr(module.config, name, value)
