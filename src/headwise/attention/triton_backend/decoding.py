"""Calls with one query that need no gradient, such as decoding with a cache: host code of `decode_kernels.py`.

Legend: B batch, H query heads, G key heads, M keys, D width of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.operators import is_plain_eager
from headwise.attention.triton_backend.cached_tables import TableCall, head_stride
from headwise.attention.triton_backend.launch import Launch, Options, Tile, kernels
from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
from headwise.attention.triton_backend.problem import DIAGONAL, FAR_AFTER, FAR_BEFORE
from headwise.attention.triton_backend.programs import BoundLaunch, Buffer, Program
from headwise.attention.triton_backend.tile_sizes import num_blocks, power_of_two
from headwise.attention.types import AttentionInputs, AttentionOutput

#: Programs for each multiprocessor, at most.
PROGRAMS_PER_MULTIPROCESSOR = 4

#: Bytes of a block of keys, and its largest number of keys: tables are padded with as many rows.
BLOCK_BYTES, MAX_BLOCK_KEYS = 8192, TABLE_PADDING

#: Rows of a matrix product, at least.
MIN_ROWS = 16

#: Splits that are combined at a time.
BLOCK_SPLITS = 16

#: Columns of a split's part after those of the output, see `decode_kernels.py`.
PART_COLUMNS = 4


@dataclass(frozen=True)
class CombineOptions:
    """Compile-time options of combine_splits_kernel."""

    value_width: int
    block_d: int  # value_width, rounded up
    block_s: int  # number of splits in a block
    sinks: bool
    query_padding: bool


class DecodeCall(TableCall):
    """Calls with one query. There is no backward pass: `attend` must not be called if a gradient is needed."""

    num_results = 2

    def attend(self, inputs: tuple[Tensor, ...]) -> Tensor | AttentionOutput:
        return self.forward(inputs)[0]

    def compute(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return output and lse in base 2."""
        output, *others = self.forward(inputs)
        lse = others[0]
        assert lse is not None
        return output, lse

    def _build_forward(self) -> Program:
        plan = self.plan
        heads = heads_per_program(plan, [self.key_table, self.value_table])
        splits, blocks_per_split = divide_keys(plan, heads)
        launches = plan.launches(decode_launches, self.key_table, self.value_table, heads, splits, blocks_per_split)
        parts = Buffer((*plan.query_shape[:2], splits, plan.value_width + PART_COLUMNS), torch.float32)
        names = (*self.names, "o", "lse", "parts")
        strides = {"dense_table": plan.table_strides, "query_table": plan.query_table_strides}
        views: dict[str, str | tuple[str, int]] = {  # without the padding before their rows
            name: (name, TABLE_PADDING * by_name[f"stride_{name}_r"]) for name, by_name in strides.items()
        }
        bound = [BoundLaunch(launch, names, views) for launch in launches.values()]
        return Program(bound, [self.output_buffer("o"), self.lse_buffer, parts if splits > 1 else None])


def can_decode(inputs: AttentionInputs, tensors: dict[str, Tensor]) -> bool:
    """Return whether a `DecodeCall` computes this.

    Args:
        inputs: the arguments of `attend`.
        tensors: the tensors of the call, by name.
    """
    terms = inputs.terms
    if terms.q.shape[2] != 1 or inputs.dropout > 0 or inputs.cu_seqlens is not None:
        return False
    if inputs.want_received or inputs.want_weight_norms or not is_plain_eager(terms.q):
        return False
    if _compat.is_forward_ad_active() or needs_gradient(tensors.values()):
        return False
    if not all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors.values()):
        return False
    if terms.biases is not None and "key_table" in tensors:  # the table has queries of its own
        return False
    has_rows = all(x.stride(-1) == 1 and x.numel() for name, x in tensors.items() if name in WITH_ROWS)
    return has_rows and all(x.is_contiguous() for name, x in tensors.items() if name in CONTIGUOUS)


#: Tensors whose rows must be contiguous, and those that must be contiguous.
WITH_ROWS = ("q", "k", "v", "dense_table", "query_table", "position_q", "position_k")
CONTIGUOUS = ("key_table", "value_table", "bias_uv", "relative_bias", "key_padding", "query_padding")


def needs_gradient(tensors: Any) -> bool:
    """Return whether any of these tensors needs a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def decode_tile(plan: Plan) -> Tile:
    """Return the tile of decode_kernel: at least 8 keys in float32, and 16 in half precision."""
    width = max(power_of_two(x) for x in (plan.width, plan.value_width))
    return Tile(1, min(BLOCK_BYTES // (width * plan.q.itemsize), MAX_BLOCK_KEYS))


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; a few for Triton's interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def visited_blocks(plan: Plan) -> int:
    """Return the number of blocks of keys that the query can see, at least 1."""
    last = int(plan.m) - 1
    if plan.causal:
        last = min(last, int(plan.q_offset))
    last = min(last, int(plan.q_offset + plan.window_right))
    first = max(int(plan.q_offset - plan.window_left), 0)
    block = decode_tile(plan).block_m
    return max(last // block - first // block + 1, 1)


def heads_per_program(plan: Plan, tables: Sequence[Any]) -> int:
    """Return how many query heads a program has: 1, or all that share keys, rounded up for matrix products.

    Tables of each head, and float32, need a program for each head.
    """
    group = int(plan.heads // plan.groups)
    has_own_tables = plan.dense_table is not None or any(table is not None and table[0] > 1 for table in tables)
    return (
        1
        if group == 1 or has_own_tables or plan.q.dtype == torch.float32
        else max(MIN_ROWS, 1 << (group - 1).bit_length())
    )


def divide_keys(plan: Plan, heads: int) -> tuple[int, int]:
    """Return the number of splits, and of blocks of keys in each of them, if a program has so many query heads."""
    blocks = visited_blocks(plan)
    num_heads = plan.heads if heads == 1 else plan.groups
    max_programs = PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(plan.device)
    blocks_per_split = num_blocks(blocks, max(max_programs // (plan.batch * num_heads), 1))
    return num_blocks(blocks, blocks_per_split), blocks_per_split


def decode_options(plan: Plan, tile: Tile) -> Options:
    """Return the compile-time options of decode_kernel. They do not depend on the number of keys."""
    regions = DIAGONAL
    if plan.has_clipped_table:
        regions |= FAR_BEFORE | (0 if plan.causal else FAR_AFTER)
    return replace(
        plan.options(tile),
        regions=regions,
        one_region=not plan.has_clipped_table,
        single_tile=False,
        single_tile_backward=False,
        sum_far_keys=False,
        skip_tiles=False,
        even_n=True,
        even_m=False,
        needs_dq=False,
    )


def decode_launches(
    plan: Plan,
    key_table: Sequence[int] | None,
    value_table: Sequence[int] | None,
    heads: int,
    splits: int,
    blocks_per_split: int,
) -> dict[str, Launch]:
    """Build the launches of a call with clipped tables of these shapes."""
    tile = decode_tile(plan)
    arguments = {
        **plan.scalar_arguments(),
        "stride_key_table_h": 0 if key_table is None else head_stride(key_table),
        "stride_value_table_h": 0 if value_table is None else head_stride(value_table),
        "blocks_per_split": blocks_per_split,
        "splits": splits,
        "HEADS": heads,
        "IS_SPLIT": splits > 1,
        "OPT": decode_options(plan, tile),
    }
    grid = (splits * (plan.heads // plan.groups) if heads == 1 else splits, plan.groups, plan.batch)
    launches = {"decode": Launch(kernels()["decode_kernel"], grid, tile, arguments)}
    if splits > 1:
        options = CombineOptions(
            plan.value_width,
            power_of_two(plan.value_width),
            BLOCK_SPLITS,
            plan.sinks is not None,
            plan.query_padding is not None,
        )
        grid = (1, plan.heads, plan.batch)
        kernel = kernels()["combine_splits_kernel"]
        combine_tile = Tile(1, BLOCK_SPLITS, max(options.block_d // 64, 1))
        launches["combine"] = Launch(kernel, grid, combine_tile, {**arguments, "OPT": options})
    return launches
