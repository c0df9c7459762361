"""Launch plans: everything about a call that does not depend on the values of its tensors (shapes, tiles, launches).

Building a plan takes longer than attention over a short sequence, so plans are cached by the layouts of the arguments.

A dense table has a row for every relative position (`SchemeTerms.is_full_table`). A clipped table has 2k + 1 rows.

Axes: B batch, H query heads, G key heads, N queries, M keys, R rows of a table.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton_backend.launch import Launch, Options, Tile
from headwise.attention.triton_backend.layouts import (
    edge_columns,
    has_contiguous_rows,
    layout_key,
    layout_like,
    named_strides,
    tensor_strides,
    to_meta,
)

#: Bits of Options.regions, in the order of `tiles.py`.
FAR_BEFORE, BEFORE, DIAGONAL, AFTER, FAR_AFTER = (1 << region for region in range(5))

#: Number of zero rows before and after a dense table. Kernels read up to one tile (64 rows) beyond its ends.
TABLE_PADDING = 64

MAX_CACHED_PLANS = 1000

#: Up to this length distance-aware attention has one loop over all keys. It was faster at 256 and 512 on an H200.
MAX_SHORT_LENGTH = 512


@cache
def kernels() -> Any:
    """Return all kernels by name, or None if Triton is not installed."""
    try:
        from headwise.attention.triton_backend import (
            backward_dkv_kernel,
            backward_kernels,
            forward_kernels,
            multi_layer_received_kernels,
            transformer_xl_kernels,
        )
    except ImportError:
        return None
    modules = (
        forward_kernels,
        backward_kernels,
        backward_dkv_kernel,
        transformer_xl_kernels,
        multi_layer_received_kernels,
    )
    return {name: x for module in modules for name, x in vars(module).items() if name.endswith("_kernel")}


#: The operators' tensor arguments, by the names of the kernels' parameters.
TENSOR_PARAMS = (
    "q_ptr", "k_ptr", "v_ptr", "w_ptr", "sharpness_ptr", "relative_scores_ptr", "bias_uv_ptr", "dense_table_ptr",
    "bias_ptr", "mask_ptr", "key_padding_ptr", "query_padding_ptr", "seq_starts_ptr", "seq_ends_ptr", "seed_ptr",
)  # fmt: skip
#: Indices of those whose rows must be contiguous.
CONTIGUOUS_PARAMS = tuple(TENSOR_PARAMS.index(name) for name in ("q_ptr", "k_ptr", "v_ptr", "dense_table_ptr"))


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
        q, k, v, w, _, relative_scores, bias_uv, dense_table, bias, mask, *_ = arguments = self.contiguous_args(
            arguments
        )
        self.q, self.k, self.v, self.w, self.bias, self.mask = q, k, v, w, bias, mask
        self.relative_scores, self.bias_uv, self.dense_table = relative_scores, bias_uv, dense_table
        self.key_padding, self.query_padding, self.seq_starts, self.seq_ends, self.seed = arguments[10:15]
        self.scale, self.q_offset, self.causal, self.rectify, self.max_offset = arguments[15:20]
        self.want_offset_sums, self.dropout, self.want_received, self.want_weight_norms = arguments[20:]
        self.device = q.device if device is None else device
        self.precision = torch.get_float32_matmul_precision()
        self.batch, self.heads, self.n, self.width = q.shape
        self.groups, self.m, self.value_width = v.shape[1:]
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
            q.new_zeros((*self.query_shape, 2 * self.max_offset + 1)) if self.want_offset_sums else None,
            q.new_empty(self.query_shape, dtype=torch.float32) if self.want_weight_norms else None,
        )

    def gradients(self, q: Tensor, needs_bias: bool) -> list[Tensor | None]:
        """Allocate the gradients of the differentiable arguments that are present, in their order, on the device of q.

        Those of w, sharpness and bias_uv are None here: they are created when their partial sums are reduced.
        """
        bias = self.bias if needs_bias else None
        return [
            *(q.new_empty_strided(*self.output_layouts[name]) for name in ("dq", "dk", "dv")),
            None,
            None,
            None if self.relative_scores is None else q.new_zeros(self.relative_scores.shape),
            None,
            None if self.dense_table is None else q.new_empty(self.dense_table.shape),
            None if bias is None else q.new_zeros(bias.shape, dtype=bias.dtype),
        ]

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
            tensors["edge_scores_ptr"] = edge_columns(relative_scores)
        if (dense_table := tensors["dense_table_ptr"]) is not None:
            tensors["dense_table_ptr"] = dense_table[:, TABLE_PADDING:]
        if (bias_uv := tensors["bias_uv_ptr"]) is not None:
            tensors["bias_uv_ptr"] = bias_uv.contiguous()
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
        has_d_lse: bool = False,
        store_d_scores: bool = False,
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
            has_d_lse: whether lse has a gradient.
            store_d_scores: whether the gradient of each pair's score is stored.
            arguments: further arguments of the kernel.
        """
        tile = self.tile(tile_name)
        pairs = (self.batch, self.heads, self.n, self.m)
        all_arguments: dict[str, Any] = {
            **tensor_strides("q", "bhn", self.q),
            **tensor_strides("k", "bhm", self.k),
            **tensor_strides("v", "bhm", self.v),
            **named_strides("o", "bhn", self.output_layouts["o"][1]),
            **named_strides("dq", "bhn", self.output_layouts["dq"][1]),
            **named_strides("dk", "bhm", self.output_layouts["dk"][1]),
            **named_strides("dv", "bhm", self.output_layouts["dv"][1]),
            **tensor_strides("relative_q", "bhn", None),
            "stride_v_dot_table_h": 0 if self.dense_table is None else self.table_rows + 2 * TABLE_PADDING,
            **self.table_strides,
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
            "max_offset": self.max_offset,
            "scale": self.scale,
            "dropout": self.dropout,
            "OPT": self.options(tile, has_d_lse=has_d_lse, store_d_scores=store_d_scores),
            **arguments,
        }
        query_blocks = _num_blocks(num_queries or self.n, tile.block_n)
        key_blocks = _num_blocks(self.m, tile.block_m)
        blocks = 1 if "blocks" in arguments else key_blocks if per_key else query_blocks
        grid = (blocks, heads, key_blocks if tile_name == "dbias" else self.batch * num_layers)
        return Launch(kernels()[kernel], grid, tile, all_arguments)

    @cached_property
    def query_blocks(self) -> int:
        """Number of query blocks of bwd_dq_kernel."""
        return _num_blocks(self.n, self.tile("dq").block_n)

    @cached_property
    def key_blocks(self) -> int:
        """Number of key blocks of fwd_kernel."""
        return _num_blocks(self.m, self.tile("fwd").block_m)

    @property
    def key_sums_shape(self) -> tuple[int, int, int, int]:
        """Shape of the prefix sums of values and of the number of keys, over blocks of keys."""
        return self.batch, self.groups, self.key_blocks + 1, self.value_width + 1

    @property
    def query_sums_shape(self) -> tuple[int, int, int, int]:
        """Shape of the prefix sums of gradients of far values, over blocks of queries."""
        return self.batch, self.heads, self.query_blocks + 1, self.value_width + 1

    @property
    def table_rows(self) -> int:
        """Number of rows of a dense table without its padding."""
        return int(max(self.n + self.m - 1, 0))

    @cached_property
    def table_strides(self) -> dict[str, Any]:
        return tensor_strides("dense_table", "hr", self.dense_table)

    def tile(self, name: str) -> Tile:
        """Return the tile of a kernel, without software pipelining if shared memory is too small for it.

        Args:
            name: the kernel: "fwd", "dq", "dkv", "dbias", "received" (forward and backward), or "dense_table".
        """
        tile = self._fastest_tile(name)
        needs_large_smem = self.dense_table is not None or self._max_block_width > 64
        return replace(tile, num_stages=1) if needs_large_smem and not self.has_large_smem else tile

    @cached_property
    def has_large_smem(self) -> bool:
        """Whether shared memory is large enough for pipelines of wide tiles (NVIDIA A100, H100, …)."""
        if self.device.type != "cuda":
            return True
        properties = torch.cuda.get_device_properties(self.device)
        return bool(getattr(properties, "shared_memory_per_block_optin", 0) >= 160 * 1024)

    @property
    def _max_block_width(self) -> int:
        return max(_power_of_two(self.width), _power_of_two(self.value_width))

    def _fastest_tile(self, name: str) -> Tile:
        """Return the tile that was fastest on an H200 (docs/design.md)."""
        width = self._max_block_width
        if self.q.dtype == torch.float32 or width > 128:
            return Tile(32, 32, 4 if self.dense_table is None or name == "dense_table" else 8)
        is_wide = width > 64
        if name == "dense_table":
            return Tile(64, 64 if is_wide else 128, 4, 4)
        if self.fits(Tile(64, 64)):
            return Tile(64, 64)
        if self.dense_table is not None:  # the relative shift needs square tiles
            return {
                "fwd": Tile(64, 64, 8 if is_wide else 4, 3),
                "dkv": Tile(64, 64, 8 if is_wide else 4, 2),
                "dq": Tile(64, 64, 8 if is_wide else 4, 2),
                "received": Tile(64, 64, 4, 2),
            }[name]
        is_plain = self.w is None and self.relative_scores is None and not self.want_offset_sums
        drops = self.seed is not None
        return {
            "fwd": Tile(128, 64, 8, 3) if is_plain and not drops else Tile(64, 64, 4, 3),
            "dkv": Tile(64, 64, 4, 2 if is_wide or drops else 3),
            "dq": Tile(128, 64, 8, 3) if is_plain and not is_wide and not self.want_received else Tile(64, 64, 4, 3),
            "received": Tile(64, 64, 4, 3),
        }.get(name, Tile(64, 64, 4, 1))

    def fits(self, tile: Tile) -> bool:
        """Whether one tile holds all queries and keys, so that kernels have no loop.

        Blocks of q and v must have the same width: without a loop, others gave wrong products on an H200 (Triton 3.6).
        """
        same_width = _power_of_two(self.width) == _power_of_two(self.value_width)
        return same_width and self.n <= tile.block_n and self.m <= tile.block_m

    @cached_property
    def single_tile_backward(self) -> bool:
        """Whether bwd_dkv_kernel computes all gradients, because one of its tiles holds all queries and keys."""
        has_table = self.relative_scores is not None or self.dense_table is not None or self.want_offset_sums
        return self.fits(self.tile("dkv")) and not has_table and self.bias is None

    @property
    def is_short(self) -> bool:
        """Whether one loop over all keys is faster than one per region, for distance-aware attention."""
        return max(self.n, self.m) <= MAX_SHORT_LENGTH

    @cached_property
    def sum_far_keys(self) -> bool:
        """Whether far keys with score 0 are summed by prefix sums.

        This is not possible with masks, biases, dropout, packed sequences or received attention.
        """
        modifiers = (self.mask, self.bias, self.seq_starts, self.seed)
        return self.w is not None and not self.is_short and all(x is None for x in modifiers) and not self.want_received

    def options(self, tile: Tile, *, has_d_lse: bool = False, store_d_scores: bool = False) -> Options:
        clipped_table = self.relative_scores is not None or self.want_offset_sums
        single_tile = self.fits(tile)
        if single_tile or (self.w is not None and self.is_short):
            regions = DIAGONAL
        elif self.w is not None:
            regions = FAR_BEFORE | BEFORE | DIAGONAL | (0 if self.causal else AFTER | FAR_AFTER)
        elif clipped_table:
            regions = FAR_BEFORE | DIAGONAL | (0 if self.causal else FAR_AFTER)
        else:
            regions = FAR_BEFORE | (DIAGONAL if self.causal else 0)
        tf32 = self.q.dtype != torch.float32 or self.precision != "highest"
        return Options(
            width=self.width,
            value_width=self.value_width,
            block_e=_power_of_two(self.width),
            block_d=_power_of_two(self.value_width),
            block_n=tile.block_n,
            block_m=tile.block_m,
            regions=regions,
            one_region=self.w is not None and self.is_short,
            single_tile=single_tile,
            single_tile_backward=self.single_tile_backward,
            causal=self.causal,
            distance=self.w is not None,
            rectify=self.rectify,
            sum_far_keys=self.sum_far_keys,
            relative_scores=self.relative_scores is not None,
            offset_sums=self.want_offset_sums,
            clipped_table=clipped_table,
            relative_shift=self.dense_table is not None,
            key_padding=self.key_padding is not None,
            query_padding=self.query_padding is not None,
            mask=self.mask is not None,
            bias=self.bias is not None,
            store_d_scores=store_d_scores,
            cu_seqlens=self.seq_starts is not None,
            dropout=self.seed is not None,
            received=self.want_received,
            weight_norms=self.want_weight_norms,
            has_d_lse=has_d_lse,
            even_m=self.m % tile.block_m == 0,
            fast=self.device.type == "cuda" and torch.version.hip is None,
            precision="tf32" if tf32 else "ieee",
        )


def _num_blocks(length: int, size: int) -> int:
    return -(-length // size)


def _power_of_two(width: int) -> int:
    """Round up to a power of two, at least 32.

    On an H200, products with 16 columns read past the end of shared memory (Triton 3.6).
    """
    return max(32, 1 << (width - 1).bit_length())


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
        if plan.dense_table is not None and plan.dense_table.shape[1] != (rows := plan.table_rows + 2 * TABLE_PADDING):
            raise ValueError(f"table must have {rows} rows, including {TABLE_PADDING} of padding on either side")
        _plan_cache[key] = plan
    return plan


def clear_plans() -> None:
    """Forget all plans."""
    _plan_cache.clear()
