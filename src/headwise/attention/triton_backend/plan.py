"""Launch plans: the buffers and launches of all calls with the same problem.

Building a plan takes longer than attention over a short sequence, so plans are cached by the layouts of the arguments.

Axes: B batch, H query heads, G key heads, N queries, M keys, R rows of a table.
"""

import math
from collections.abc import Callable, Set
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.launch import Launch, Tile, kernels
from headwise.attention.triton_backend.layouts import (
    edge_columns,
    layout_key,
    layout_like,
    named_strides,
    padded_rows,
    tensor_strides,
    to_meta,
)
from headwise.attention.triton_backend.problem import DIFFERENTIABLE, TENSOR_PARAMS, Problem
from headwise.attention.triton_backend.staging import stages_tables, staging_options
from headwise.attention.triton_backend.tile_sizes import num_blocks

#: Number of zero rows before and after a dense table. Kernels read up to one tile (64 rows) beyond its ends.
TABLE_PADDING = 64

MAX_CACHED_PLANS = 1000


class Plan(Problem):
    """The buffers and launches of a problem. The arguments are those of `Problem`."""

    def __init__(self, *arguments: Any, device: torch.device | None = None) -> None:
        super().__init__(*arguments, device=device)
        self._launches: dict[Any, dict[str, Launch]] = {}

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
        if "q" in needs:
            grads["q"] = q.new_empty_strided(*self.output_layouts["dq"])
        grads |= self.key_gradients(q, needs & {"k", "v"})
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

    def key_gradients(self, q: Tensor, needs: Set[str]) -> dict[str, Tensor]:
        """Allocate the gradients of keys and values that are needed, on the device of q, by name."""
        return {name: q.new_empty_strided(*self.output_layouts[f"d{name}"]) for name in sorted(needs)}

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

    @cached_property
    def table_strides(self) -> dict[str, Any]:
        return tensor_strides("dense_table", "hr", self.dense_table)

    @cached_property
    def query_table_strides(self) -> dict[str, Any]:
        return tensor_strides("query_table", "hr", self.query_table)


_plan_cache: dict[Any, Plan] = {}


def get_plan(*arguments: Any) -> Plan:
    """Return the plan of a call, cached by the layouts of its arguments."""
    tensors, scalars = arguments[: len(TENSOR_PARAMS)], arguments[len(TENSOR_PARAMS) :]
    device = tensors[0].device
    key = (device, _compat.uses_tf32(), scalars, *[None if x is None else layout_key(x) for x in tensors])
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
    """Clear the cache of plans."""
    _plan_cache.clear()
