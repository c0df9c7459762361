"""Launch plans: everything about a call that does not depend on the values of its tensors (shapes, tiles, launches).

Building a plan takes longer than attention over a short sequence, so plans are cached by the layouts of the arguments.

A dense table has a row for every relative position (`SchemeTerms.is_full_table`). A clipped table has 2k + 1 rows.

Axes: B batch, H query heads, G key heads, N queries, M keys, R rows of a table.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.launch import Launch, Options, Tile, kernels
from headwise.attention.triton_backend.layouts import (
    edge_columns,
    has_contiguous_rows,
    layout_key,
    layout_like,
    named_strides,
    padded_rows,
    tensor_strides,
    to_meta,
)
from headwise.attention.triton_backend.staging import NOTHING_STAGED, stages_tables, staging_options
from headwise.attention.triton_backend.tile_sizes import fastest_tile, num_blocks, power_of_two

#: Bits of Options.regions, in the order of `tiles.py`.
FAR_BEFORE, BEFORE, DIAGONAL, AFTER, FAR_AFTER = (1 << region for region in range(5))

#: Number of zero rows before and after a dense table. Kernels read up to one tile (64 rows) beyond its ends.
TABLE_PADDING = 64

MAX_CACHED_PLANS = 1000

#: Up to this length distance-aware attention has one loop over all keys. It was faster at 256 and 512 on an H200.
MAX_SHORT_LENGTH = 512

#: The same if distance factors are kept in shared memory, which was faster at 1024 and slower at 2048.
MAX_STAGED_LENGTH = 1024

#: Size of a window without a limit on one side. Positions plus this fit into 32 bits.
NO_LIMIT = 2**30


#: The operators' tensor arguments, by the names of the kernels' parameters.
TENSOR_PARAMS = (
    "q_ptr", "k_ptr", "v_ptr", "w_ptr", "sharpness_ptr", "relative_scores_ptr", "bias_uv_ptr", "dense_table_ptr",
    "query_table_ptr", "relative_bias_ptr", "position_q_ptr", "bias_ptr", "sinks_ptr", "position_k_ptr", "mask_ptr",
    "key_padding_ptr", "query_padding_ptr", "seq_starts_ptr", "seq_ends_ptr", "seed_ptr",
)  # fmt: skip
#: The differentiable ones, in the order of their gradients.
DIFFERENTIABLE = tuple(name.removesuffix("_ptr") for name in TENSOR_PARAMS[:13])
#: Indices of those whose rows must be contiguous.
CONTIGUOUS_PARAMS = tuple(
    TENSOR_PARAMS.index(f"{name}_ptr")
    for name in ("q", "k", "v", "dense_table", "query_table", "position_q", "position_k")
)


class Plan:
    """Shapes, tiles and launches of all calls whose arguments have the same layouts.

    Args:
        arguments: the operators' arguments (`operator.ARGUMENTS`). The values of tensors are not used.
        device: the device of the call, if the tensors are on another one.
    """

    def __init__(self, *arguments: Any, device: torch.device | None = None) -> None:
        self.non_contiguous = [
            i for i in CONTIGUOUS_PARAMS if arguments[i] is not None and not has_contiguous_rows(arguments[i])
        ]
        arguments = self.contiguous_args(arguments)
        q, k, v, w, sharpness = arguments[:5]
        self.q, self.k, self.v, self.w = q, k, v, w
        self.relative_scores, self.bias_uv, self.dense_table, self.query_table, self.relative_bias = arguments[5:10]
        self.position_q, self.bias, self.sinks, self.position_k, self.mask, *others = arguments[10:]
        self.key_padding, self.query_padding, self.seq_starts, self.seq_ends, self.seed = others[:5]
        self.scale, self.softcap, self.q_offset, self.causal, left, right, self.rectify, self.max_offset = others[5:13]
        self.want_offset_sums, self.dropout, self.want_received, self.want_weight_norms = others[13:]
        self.has_distance = w is not None and sharpness is not None
        self.has_slopes = w is not None and sharpness is None
        self.has_window = left >= 0 or right >= 0
        self.window_left, self.window_right = (NO_LIMIT if limit < 0 else limit for limit in (left, right))
        self.device = q.device if device is None else device
        self.precision = torch.get_float32_matmul_precision()
        self.batch, self.heads, self.n, self.width = q.shape
        self.groups, self.m, self.value_width = v.shape[1:]
        self.has_key_lengths = self.seq_ends is not None and self.seq_ends.shape[0] == self.n + self.m
        self.query_shape = (self.batch, self.heads, self.n)
        self._launches: dict[Any, dict[str, Launch]] = {}

    def contiguous_args(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments, with contiguous copies of tensors whose rows are not contiguous."""
        if not self.non_contiguous:
            return arguments
        return tuple(x.contiguous() if i in self.non_contiguous else x for i, x in enumerate(arguments))

    def outputs(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Allocate output, lse, and if requested received, offset_sums and weight_norms, on the device of q."""
        return (
            q.new_empty_strided(*self.output_layouts["o"]),
            q.new_empty(self.query_shape, dtype=torch.float32),
            q.new_empty((self.batch, self.heads, self.m), dtype=torch.float32) if self.want_received else None,
            q.new_zeros((*self.query_shape, padded_rows(self.max_offset))) if self.want_offset_sums else None,
            q.new_empty(self.query_shape, dtype=torch.float32) if self.want_weight_norms else None,
        )

    def gradients(self, q: Tensor, needs: frozenset[str]) -> dict[str, Tensor | None]:
        """Allocate the gradients that are needed, on the device of q, by the names in DIFFERENTIABLE.

        Those of w, sharpness, bias_uv, relative_bias and sinks are None here: they are created when their partial sums
        are reduced.
        """
        grads: dict[str, Tensor | None] = dict.fromkeys(DIFFERENTIABLE)
        for name in ("q", "k", "v"):
            if name in needs:
                grads[name] = q.new_empty_strided(*self.output_layouts[f"d{name}"])
        if self.relative_scores is not None and "relative_scores" in needs:
            grads["relative_scores"] = q.new_zeros(self.relative_scores.shape)
        if self.position_q is not None and "position_q" in needs:
            grads["position_q"] = q.new_empty(self.position_q.shape)
        for name, table in (("dense_table", self.dense_table), ("query_table", self.query_table)):
            if table is not None and name in needs:
                grads[name] = q.new_empty(table.shape)
        if self.bias is not None and "bias" in needs:
            grads["bias"] = q.new_zeros(self.bias.shape, dtype=self.bias.dtype)
        return grads

    @cached_property
    def output_layouts(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes and strides of the output, which has the layout of q, and of the gradients of q, k and v."""
        sources = {"o": (self.q, self.v), "dq": (self.q, self.q), "dk": (self.k, self.k), "dv": (self.v, self.v)}
        return {name: layout_like(x, last.shape[3]) for name, (x, last) in sources.items()}

    def tensors(self, arguments: tuple[Any, ...], **others: Tensor | None) -> dict[str, Tensor | None]:
        """Return the tensors that kernels take, by parameter name: the operators' arguments, and others."""
        tensors = dict(zip(TENSOR_PARAMS, arguments, strict=False), **others)
        if (relative_scores := tensors["relative_scores_ptr"]) is not None:
            tensors["relative_scores_ptr"] = relative_scores = relative_scores.contiguous()
            tensors["edge_scores_ptr"] = edge_columns(relative_scores, self.max_offset)
        for name in ("dense_table_ptr", "query_table_ptr"):
            if (table := tensors[name]) is not None:
                tensors[name] = table[:, TABLE_PADDING:]
        if (bias_uv := tensors["bias_uv_ptr"]) is not None:
            tensors["bias_uv_ptr"] = bias_uv.contiguous()
        if (relative_bias := tensors["relative_bias_ptr"]) is not None:
            tensors["relative_bias_ptr"] = relative_bias.contiguous()
        if (mask := tensors["mask_ptr"]) is not None:
            tensors["mask_ptr"] = mask.view(torch.uint8)
        for name in ("key_padding_ptr", "query_padding_ptr"):
            if (padding := tensors[name]) is not None:
                tensors[name] = padding.contiguous().view(torch.uint8)
        return tensors

    def launches(self, build: Callable[..., dict[str, Launch]], *args: Any) -> dict[str, Launch]:
        """Return build(plan, *args), cached by the layouts of args."""
        key = (build, *[layout_key(x) if isinstance(x, Tensor) else x for x in args])
        launches = self._launches.get(key)
        if launches is None:
            launches = self._launches[key] = build(self, *args)
        return launches

    def launch(
        self,
        kernel: str,
        tile_name: str,
        heads: int,
        *,
        num_layers: int = 1,
        per_key: bool = False,
        num_queries: int = 0,
        num_keys: int = 0,
        has_d_lse: bool = False,
        store_d_scores: str = "",
        needs: frozenset[str] = frozenset(),
        sums_in_output: bool = False,
        staged_tables: bool = False,
        **arguments: Any,
    ) -> Launch:
        """Build the launch of a kernel.

        The grid is (blocks, heads, batch · num_layers). If `arguments` contains `blocks`, one program handles all
        blocks. The grid of `bwd_dbias_kernel` is (query blocks, batch elements · heads of the bias, key blocks).

        Args:
            kernel: the kernel's name.
            tile_name: the name of its tile.
            heads: size of the grid's second axis.
            num_layers: number of layers in the grid.
            per_key: whether blocks are blocks of keys, not of queries.
            num_queries: number of queries, if the launch covers only a chunk of them.
            num_keys: number of keys, if the launch covers only a chunk of them.
            has_d_lse: whether lse has a gradient.
            store_d_scores: which gradient of each pair's score is stored; see `Options`.
            needs: the differentiable arguments whose gradients are needed.
            sums_in_output: whether the output contains the products of offset sums and the value table.
            staged_tables: whether kernels compute the products with clipped tables.
            arguments: further arguments of the kernel.
        """
        tile = self.tile(tile_name)
        if kernel == "bwd_dkv_kernel" and stages_tables(self, kernel, staged_tables):
            tile = replace(tile, num_stages=1)
        options = self.options(
            tile,
            has_d_lse=has_d_lse,
            store_d_scores=store_d_scores,
            needs=needs,
            sums_in_output=sums_in_output,
            staging=staging_options(self, kernel, tile, staged_tables),
        )
        all_arguments = {
            **self.scalar_arguments(),
            **self._visited_strides(tile, per_key=per_key),
            "OPT": options,
            **arguments,
        }
        query_blocks = num_blocks(num_queries or self.n, tile.block_n)
        key_blocks = num_blocks(num_keys or self.m, tile.block_m)
        blocks = 1 if "blocks" in arguments else key_blocks if per_key else query_blocks
        grid = (blocks, heads, key_blocks if tile_name == "dbias" else self.batch * num_layers)
        return Launch(kernels()[kernel], grid, tile, all_arguments)

    def scalar_arguments(self) -> dict[str, Any]:
        """Return the arguments of kernels that are neither tensors nor depend on tiles, by name."""
        pairs = (self.batch, self.heads, self.n, self.m)
        return {
            **tensor_strides("q", "bhn", self.q),
            **tensor_strides("k", "bhm", self.k),
            **tensor_strides("v", "bhm", self.v),
            **named_strides("o", "bhn", self.output_layouts["o"][1]),
            **named_strides("dq", "bhn", self.output_layouts["dq"][1]),
            **named_strides("dk", "bhm", self.output_layouts["dk"][1]),
            **named_strides("dv", "bhm", self.output_layouts["dv"][1]),
            **tensor_strides("relative_q", "bhn", None),
            **tensor_strides("position_q", "bhn", self.position_q),
            **self._position_k_strides(),
            "stride_v_dot_table_h": 0 if self.dense_table is None else self.table_rows + 2 * TABLE_PADDING,
            **self.table_strides,
            **self.query_table_strides,
            **tensor_strides("mask", "bhnm", None if self.mask is None else self.mask.expand(pairs)),
            **tensor_strides("bias", "bhnm", None if self.bias is None else self.bias.expand(pairs)),
            "H": self.heads,
            "G": self.groups,
            "B": self.batch,
            "GROUP": self.heads // self.groups,
            "chunk_start": 0,
            "n": self.n,
            "m": self.m,
            "q_offset": self.q_offset,
            "window_left": self.window_left,
            "window_right": self.window_right,
            "softcap": self.softcap * math.log2(math.e),
            "max_offset": self.max_offset,
            "scale": self.scale,
            "dropout": self.dropout,
        }

    def _position_k_strides(self) -> dict[str, Any]:
        """Return the strides of position_k, 0 along axes that are broadcast."""
        x = self.position_k
        return tensor_strides("position_k", "bhm", None if x is None else x.expand(self.batch, self.groups, -1, -1))

    def _visited_strides(self, tile: Tile, *, per_key: bool) -> dict[str, Any]:
        """Return the strides of `visited_tiles` for a kernel, 0 along axes that the mask does not have."""
        batch, heads = (1, 1) if self.mask is None else self.mask.shape[:2]
        blocks, tiles = num_blocks(self.n, tile.block_n), num_blocks(self.m, tile.block_m)
        if per_key:
            blocks, tiles = tiles, blocks
        size = blocks * (2 * tiles + 1)
        return named_strides("visited", "bh", (heads * size if batch > 1 else 0, size if heads > 1 else 0))

    @cached_property
    def query_blocks(self) -> int:
        """Number of query blocks of bwd_dq_kernel."""
        return num_blocks(self.n, self.tile("dq").block_n)

    @cached_property
    def key_blocks(self) -> int:
        """Number of key blocks of fwd_kernel."""
        return num_blocks(self.m, self.tile("fwd").block_m)

    @property
    def key_sums_shape(self) -> tuple[int, int, int, int]:
        """Shape of the prefix sums of values and of the number of keys, over blocks of keys."""
        return self.batch, self.groups, self.key_blocks + 1, self.value_width + 1

    @property
    def query_sums_shape(self) -> tuple[int, int, int, int]:
        """Shape of the prefix sums of gradients of far values, over blocks of queries."""
        return self.batch, self.heads, self.query_blocks + 1, self.value_width + 1

    @property
    def position_width(self) -> int:
        """Width of position_q and position_k, 0 without them."""
        return 0 if self.position_q is None else int(self.position_q.shape[3])

    @property
    def table_rows(self) -> int:
        """Number of rows of a dense table without its padding."""
        return int(max(self.n + self.m - 1, 0))

    @cached_property
    def table_strides(self) -> dict[str, Any]:
        return tensor_strides("dense_table", "hr", self.dense_table)

    @cached_property
    def query_table_strides(self) -> dict[str, Any]:
        return tensor_strides("query_table", "hr", self.query_table)

    def tile(self, name: str) -> Tile:
        """Return the tile of a kernel, without software pipelining if shared memory or the compiler does not allow it.

        Args:
            name: the kernel: "fwd", "dq", "dkv", "dbias", "received" (forward and backward), or "dense_table".
        """
        tile = self._fastest_tile(name)
        is_dense, is_wide = self.dense_table is not None, self._max_block_width > 64
        needed_smem = 160 * 1024 if is_dense or is_wide else 0  # of an A100
        if is_dense and is_wide and name == "dkv" and self.max_smem < needed_smem:
            return Tile(32, 32, 4, 1)
        if self.query_table is not None:
            return replace(tile, num_stages=1)
        if self.is_blackwell and is_dense and name != "dense_table":
            # Triton's pipeline would load shifted products before they are stored (docs/design.md).
            return replace(tile, num_stages=1)
        if self.is_blackwell and is_wide and self.position_q is not None and name == "dq":  # needs more shared memory
            tile = replace(tile, num_stages=2)
        if is_dense and is_wide and self.max_smem < 227 * 1024:  # of an H100
            if self.mask is not None and self.bias is not None:
                return replace(tile, num_stages=1)
            tile = replace(tile, num_stages=min(tile.num_stages, 3 if name == "fwd" else 2))
        return replace(tile, num_stages=1) if self.max_smem < needed_smem else tile

    @cached_property
    def max_smem(self) -> int:
        """Shared memory that a program can have, in bytes."""
        if self.device.type != "cuda":
            return 227 * 1024
        return int(getattr(torch.cuda.get_device_properties(self.device), "shared_memory_per_block_optin", 0))

    @property
    def is_nvidia(self) -> bool:
        """Whether the device is an NVIDIA GPU."""
        return self.device.type == "cuda" and torch.version.hip is None

    @cached_property
    def capability(self) -> tuple[int, int]:
        """Compute capability of an NVIDIA GPU."""
        return torch.cuda.get_device_capability(self.device)

    @property
    def is_blackwell(self) -> bool:
        """Whether the device is an NVIDIA GPU of compute capability 10.0 or newer."""
        return self.is_nvidia and self.capability >= (10, 0)

    @cached_property
    def is_fast(self) -> bool:
        """Whether kernels use inline assembly for NVIDIA GPUs."""
        return self.is_nvidia and (self.dense_table is None or self.can_reserve_smem)

    @cached_property
    def can_reserve_smem(self) -> bool:
        """Whether kernels can reserve shared memory in addition to Triton's."""
        return self.is_nvidia and _compat.reserved_shared_memory.works(self.device)

    @cached_property
    def can_stage_distance(self) -> bool:
        """Whether shared memory can hold the factors of distance-aware attention, by relative position."""
        has_only_distance = self.has_distance and not self.has_clipped_table and self.dense_table is None
        return has_only_distance and not self.has_key_lengths and self.can_reserve_smem

    @property
    def _max_block_width(self) -> int:
        return max(power_of_two(width) for width in (self.width, self.value_width, self.position_width) if width)

    def _fastest_tile(self, name: str) -> Tile:
        """Return the tile that was fastest on an H200 (docs/design.md)."""
        return fastest_tile(
            name,
            width=self._max_block_width,
            is_float32=self.q.dtype == torch.float32,
            is_single_tile=self.fits(Tile(64, 64)),
            has_dense_table=self.dense_table is not None,
            has_position_product=self.position_q is not None,
            has_position_terms=self.has_distance or self.has_clipped_table,
            has_relative_bias=self.relative_bias is not None,
            has_clipped_table=self.has_clipped_table,
            is_short=self.is_short,
            has_pair_inputs=self.mask is not None or self.bias is not None,
            has_dropout=self.seed is not None,
            want_received=self.want_received,
        )

    def fits(self, tile: Tile) -> bool:
        """Whether one tile holds all queries and keys, so that kernels have no loop.

        Blocks of q and v must have the same width: without a loop, others gave wrong products on an H200 (Triton 3.6).
        """
        same_width = power_of_two(self.width) == power_of_two(self.value_width)
        return same_width and self.n <= tile.block_n and self.m <= tile.block_m

    @property
    def has_clipped_table(self) -> bool:
        """Whether far keys share a row of a clipped table of keys, values or biases."""
        return self.relative_scores is not None or self.relative_bias is not None or self.want_offset_sums

    @cached_property
    def single_tile_backward(self) -> bool:
        """Whether bwd_dkv_kernel computes all gradients, because one of its tiles holds all queries and keys."""
        has_table = self.has_clipped_table or self.dense_table is not None or self.position_q is not None
        return self.fits(self.tile("dkv")) and not has_table and self.bias is None and self.sinks is None

    @cached_property
    def received_in_dq(self) -> bool:
        """Whether bwd_dq_kernel computes the part of delta from received attention, if it runs.

        Then dq must be all that it computes, and each query's weights must sum to 1.
        """
        others = (self.w, self.relative_scores, self.relative_bias, self.dense_table, self.position_q, self.bias)
        is_plain = all(x is None for x in others) and not self.want_offset_sums and not self.softcap
        is_narrow = self._max_block_width <= 64  # otherwise registers are spilled
        return self.want_received and is_plain and is_narrow and self.sinks is None and not self.single_tile_backward

    @property
    def is_short(self) -> bool:
        """Whether one loop over all keys is faster than one per region, for distance-aware attention."""
        max_length = MAX_STAGED_LENGTH if self.can_stage_distance else MAX_SHORT_LENGTH
        return bool(max(self.n, self.m) <= max_length)

    @cached_property
    def sum_far_keys(self) -> bool:
        """Whether far keys with score 0 are summed by prefix sums.

        This is not possible with masks, windows, biases, dropout, packed sequences or received attention.
        """
        modifiers = (self.mask, self.bias, self.seq_starts, self.seed)
        can_sum = all(x is None for x in modifiers) and not self.has_window and not self.want_received
        return self.has_distance and not self.is_short and can_sum

    def skips_tiles(self, tile: Tile) -> bool:
        """Whether tiles without any unmasked pair are skipped."""
        return self.mask is not None and not self.fits(tile)

    def options(
        self,
        tile: Tile,
        *,
        has_d_lse: bool = False,
        store_d_scores: str = "",
        needs: frozenset[str] = frozenset(),
        sums_in_output: bool = False,
        staging: Mapping[str, Any] = NOTHING_STAGED,
    ) -> Options:
        single_tile = self.fits(tile)
        one_region = (self.has_distance and self.is_short) or self.has_key_lengths
        if single_tile or one_region:
            regions = DIAGONAL
        elif self.has_distance:
            regions = FAR_BEFORE | BEFORE | DIAGONAL | (0 if self.causal else AFTER | FAR_AFTER)
        elif self.has_clipped_table:
            regions = FAR_BEFORE | DIAGONAL | (0 if self.causal else FAR_AFTER)
        else:
            regions = FAR_BEFORE | (DIAGONAL if self.causal else 0)
        tf32 = self.q.dtype != torch.float32 or self.precision != "highest"
        return Options(
            half=self.q.dtype != torch.float32,
            width=self.width,
            value_width=self.value_width,
            block_e=power_of_two(self.width),
            block_d=power_of_two(self.value_width),
            block_n=tile.block_n,
            block_m=tile.block_m,
            regions=regions,
            one_region=one_region,
            single_tile=single_tile,
            single_tile_backward=self.single_tile_backward,
            causal=self.causal,
            distance=self.has_distance,
            slopes=self.has_slopes,
            rectify=self.rectify,
            sum_far_keys=self.sum_far_keys,
            relative_scores=self.relative_scores is not None,
            offset_sums=self.want_offset_sums,
            sums_in_output=sums_in_output,
            relative_bias=self.relative_bias is not None,
            clipped_table=self.has_clipped_table,
            relative_shift=self.dense_table is not None,
            query_table=self.query_table is not None,
            position_width=self.position_width,
            block_p=power_of_two(self.position_width) if self.position_width else 0,
            window=self.has_window,
            softcap=self.softcap > 0.0,
            sinks=self.sinks is not None,
            skip_tiles=self.skips_tiles(tile),
            key_padding=self.key_padding is not None,
            query_padding=self.query_padding is not None,
            mask=self.mask is not None,
            bias=self.bias is not None,
            store_d_scores=store_d_scores,
            cu_seqlens=self.seq_starts is not None,
            cu_seqlens_k=self.has_key_lengths,
            dropout=self.seed is not None,
            received=self.want_received,
            received_in_dq=self.received_in_dq,
            weight_norms=self.want_weight_norms,
            has_d_lse=has_d_lse,
            even_n=self.n % tile.block_n == 0,
            even_m=self.m % tile.block_m == 0,
            needs_dq="q" in needs or self.dense_table is not None,
            needs_dk=not needs.isdisjoint(("k", "query_table")),
            needs_dv="v" in needs,
            needs_position_q="position_q" in needs,
            needs_distance=not needs.isdisjoint(("w", "sharpness")),
            needs_relative="relative_scores" in needs,
            needs_relative_bias="relative_bias" in needs,
            fast=self.is_fast,
            precision="tf32" if tf32 else "ieee",
            **staging,
        )


_plan_cache: dict[Any, Plan] = {}


def get_plan(*arguments: Any) -> Plan:
    """Return the plan of a call, cached by the layouts of its arguments."""
    tensors, scalars = arguments[: len(TENSOR_PARAMS)], arguments[len(TENSOR_PARAMS) :]
    device, precision = tensors[0].device, torch.get_float32_matmul_precision()
    key = (device, precision, scalars, *[None if x is None else layout_key(x) for x in tensors])
    plan = _plan_cache.get(key)
    if plan is None:
        if len(_plan_cache) >= MAX_CACHED_PLANS:
            _plan_cache.clear()
        plan = Plan(*[None if x is None else to_meta(x) for x in tensors], *scalars, device=device)
        rows = plan.table_rows + 2 * TABLE_PADDING
        if any(table is not None and table.shape[1] != rows for table in (plan.dense_table, plan.query_table)):
            raise ValueError(f"table must have {rows} rows, including {TABLE_PADDING} of padding on either side")
        _plan_cache[key] = plan
    return plan


def clear_plans() -> None:
    """Forget all plans."""
    _plan_cache.clear()
