"""Cached calls with clipped tables of relative positions (Shaw et al.), including the products with the tables.

The forward pass multiplies the queries with the key table, and adds the products of the sums of weights by relative
position with the value table to the output. The backward pass is the reverse:

    relative_scores = q · key_tableᵀ              d_offset_sums = dO · value_tableᵀ
    fwd_kernel (offset_sums)                      bwd_dq_kernel (d_relative_scores), bwd_dkv_kernel
    O += offset_sums · value_table                dQ += d_relative_scores · key_table
                                                  d_key_table = d_relative_scoresᵀ · q
                                                  d_value_table = offset_sumsᵀ · dO
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton_backend.cached_passes import BoundBackward, BoundCall, BoundLaunch, Results, bind, run
from headwise.attention.triton_backend.launch import Launch, Tile, kernels
from headwise.attention.triton_backend.layouts import named_strides, padded_rows
from headwise.attention.triton_backend.passes import backward_launches, forward_launches
from headwise.attention.triton_backend.tile_sizes import num_blocks, power_of_two

#: About how many programs compute the gradient of a table.
NUM_GRADIENT_PROGRAMS = 256

#: Tensors of the backward pass besides the inputs.
BACKWARD_TENSORS = (
    "o", "lse", "relative_scores", "edge_scores", "offset_sums", "do", "delta", "dq", "dk", "dv",
    "d_offset_sums", "d_edge_sums", "d_relative_scores", "d_relative_bias_partials", "key_partials", "value_partials",
)  # fmt: skip


@dataclass(frozen=True)
class TableOptions:
    """Compile-time options of the kernels for products with tables."""

    width: int
    block_e: int  # width, rounded up
    block_n: int
    block_r: int
    zeros: bool  # also zero another tensor
    precision: str
    fast: bool = False


class TableCall(BoundCall):
    """Calls with a clipped key table, value table or both; their launches are kept."""

    def __init__(self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor]) -> None:
        tensors = dict(zip(names, inputs, strict=True))
        self.key_table: Any = tensors["key_table"].shape if "key_table" in names else None
        self.value_table: Any = tensors["value_table"].shape if "value_table" in names else None
        super().__init__(names, scalars, inputs)

    def operator_tensors(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        tensors = list(super().operator_tensors(inputs))
        if self.key_table is not None:
            q = inputs[0]
            shape = (*q.shape[:3], padded_rows(self.key_table[1] // 2))
            tensors[5] = torch.empty(shape, dtype=q.dtype, device="meta")
        return tuple(tensors)

    def _bind_forward(self) -> list[BoundLaunch]:
        plan = self.plan
        names = (*self.names, "o", "lse", "relative_scores", "edge_scores", "offset_sums")
        launches = []
        if self.key_table is not None:
            aliases = {"x": "q", "table": "key_table", "scores": "relative_scores", "edges": "edge_scores"}
            launch = self._scores_launch(plan.q.stride(), self.key_table, zeros=self.value_table is not None)
            launches.append(bind(launch, names, aliases | {"zeros": "offset_sums"}))
        launches.append(bind(plan.launches(forward_launches)["fwd"], names))
        if self.value_table is not None:
            launch = self._add_launch(plan.output_layouts["o"][1], self.value_table)
            launches.append(bind(launch, names, {"sums": "offset_sums", "table": "value_table", "out": "o"}))
        return launches

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        plan, q = self.plan, inputs[0]
        output = q.new_empty_strided(*self.output_layout)
        lse = q.new_empty(plan.query_shape, dtype=torch.float32)
        relative_scores, edge_scores = self._new_scores(q, self.key_table)
        offset_sums = None
        if self.value_table is not None:
            new = q.new_zeros if self.key_table is None else q.new_empty  # the first kernel zeroes it
            offset_sums = new((*plan.query_shape, padded_rows(plan.max_offset)))
        tensors = (output, lse, relative_scores, edge_scores, offset_sums)
        run(self.forward_launches, (*inputs, *tensors))
        return tensors

    def _new_scores(self, q: Tensor, table: Any) -> tuple[Tensor | None, Tensor | None]:
        """Allocate the products of queries with a table, and their edge columns."""
        if table is None:
            return None, None
        batch, heads, n = self.plan.query_shape
        rows = padded_rows(self.plan.max_offset)
        return q.new_empty((batch, heads, n, rows)), q.new_empty((batch, heads, 2, n))

    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None] | None:
        bound = self._find_backward(d_output, needs_grad)
        if bound is None:
            return None
        plan, needs = self.plan, bound.needs
        q, lse = saved[0], saved[len(self.names) + 1]
        dq, dk, dv = [None if layout is None else q.new_empty_strided(*layout) for layout in bound.layouts]
        d_offset_sums, d_edge_sums = self._new_scores(q, self.value_table)
        d_relative_scores = None
        if self.key_table is not None:
            new = q.new_zeros if self.value_table is None else q.new_empty
            d_relative_scores = new((*plan.query_shape, padded_rows(plan.max_offset)))
        bias_partials = None
        if "relative_bias" in needs:
            bias_partials = lse.new_zeros((*self.partials_shape, 2 * plan.max_offset + 1))
        is_pair = self.key_table == self.value_table and {"key_table", "value_table"} <= needs
        key_partials = value_partials = None
        if is_pair:
            partials = lse.new_empty((2, self._gradient_grid(self.key_table)[0], *self.key_table))
            key_partials, value_partials = partials.unbind()
        else:
            if "key_table" in needs:
                key_partials = lse.new_empty((self._gradient_grid(self.key_table)[0], *self.key_table))
            if "value_table" in needs:
                value_partials = lse.new_empty((self._gradient_grid(self.value_table)[0], *self.value_table))
        tensors = (
            *saved, d_output, torch.empty_like(lse), dq, dk, dv, d_offset_sums, d_edge_sums, d_relative_scores,
            bias_partials, key_partials, value_partials,
        )  # fmt: skip
        run(bound.launches, tensors)
        grads: dict[str, Tensor | None] = {"q": dq, "k": dk, "v": dv}
        if is_pair:
            grads["key_table"], grads["value_table"] = partials.sum(1).unbind()
        else:
            grads["key_table"] = None if key_partials is None else key_partials.sum(0)
            grads["value_table"] = None if value_partials is None else value_partials.sum(0)
        grads["relative_bias"] = None if bias_partials is None else bias_partials.sum((0, 1, 3))
        return [grads.get(name) for name in self.names]

    def _bind_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> BoundBackward | None:
        plan = self.plan
        needs = self.needed_names(needs_grad)
        if "q" not in needs:
            return None
        kernel_needs = needs | {"relative_scores"} if self.key_table is not None else needs
        has_sums = self.value_table is not None
        launches = plan.launches(backward_launches, d_output, None, False, False, kernel_needs, has_sums)
        names = (*self.names, *BACKWARD_TENSORS)
        bound = []
        if self.value_table is not None:
            aliases = {"x": "do", "table": "value_table", "scores": "d_offset_sums", "edges": "d_edge_sums"}
            launch = self._scores_launch(d_output.stride(), self.value_table, zeros=self.key_table is not None)
            bound.append(bind(launch, names, aliases | {"zeros": "d_relative_scores"}))
        bound.append(bind(launches["dq"], names))
        if not needs.isdisjoint(("k", "v")):
            bound.append(bind(launches["dkv"], names))
        if self.key_table is not None:
            launch = self._add_launch(plan.output_layouts["dq"][1], self.key_table)
            bound.append(bind(launch, names, {"sums": "d_relative_scores", "table": "key_table", "out": "dq"}))
        if "key_table" in needs:
            launch = self._gradient_launch(plan.q.stride(), self.key_table)
            bound.append(bind(launch, names, {"sums": "d_relative_scores", "x": "q", "partials": "key_partials"}))
        if "value_table" in needs:
            launch = self._gradient_launch(d_output.stride(), self.value_table)
            bound.append(bind(launch, names, {"sums": "offset_sums", "x": "do", "partials": "value_partials"}))
        layouts = [plan.output_layouts[f"d{name}"] if name in needs else None for name in ("q", "k", "v")]
        return BoundBackward(bound, layouts, needs)

    def _options(self, table: Any, *, zeros: bool = False) -> TableOptions:
        width = table[2]
        is_float32 = self.plan.q.dtype == torch.float32
        block = 32 if is_float32 or width > 128 else 64
        precision = self.plan.options(self.plan.tile("fwd")).precision
        return TableOptions(width, power_of_two(width), block, block, zeros, precision)

    def _launch(self, kernel: str, grid: tuple[int, int, int], options: TableOptions, **arguments: Any) -> Launch:
        plan = self.plan
        common = {"H": plan.heads, "n": plan.n, "max_offset": plan.max_offset, "OPT": options}
        return Launch(kernels()[kernel], grid, Tile(options.block_n, options.block_r, 4, 2), common | arguments)

    def _scores_launch(self, x_strides: tuple[int, ...], table: Any, *, zeros: bool) -> Launch:
        """Build the launch of table_scores_kernel for a tensor with these strides and a table of this shape."""
        options = self._options(table, zeros=zeros)
        arguments = {**named_strides("x", "bhn", x_strides), "stride_table_h": head_stride(table)}
        return self._launch("table_scores_kernel", self._query_grid(options), options, **arguments)

    def _add_launch(self, out_strides: tuple[int, ...], table: Any) -> Launch:
        """Build the launch of add_table_product_kernel."""
        options = self._options(table)
        arguments = {**named_strides("out", "bhn", out_strides), "stride_table_h": head_stride(table)}
        return self._launch("add_table_product_kernel", self._query_grid(options), options, **arguments)

    def _gradient_launch(self, x_strides: tuple[int, ...], table: Any) -> Launch:
        """Build the launch of table_gradient_kernel."""
        num_parts = self.plan.batch * (1 if table[0] > 1 else self.plan.heads)
        arguments = {**named_strides("x", "bhn", x_strides), "TABLE_HEADS": table[0], "num_parts": num_parts}
        return self._launch("table_gradient_kernel", self._gradient_grid(table), self._options(table), **arguments)

    def _query_grid(self, options: TableOptions) -> tuple[int, int, int]:
        return num_blocks(self.plan.n, options.block_n), self.plan.heads, self.plan.batch

    def _gradient_grid(self, table: Any) -> tuple[int, int, int]:
        table_heads, rows, _ = table
        row_blocks = num_blocks(rows, self._options(table).block_r)
        num_parts = self.plan.batch * (1 if table_heads > 1 else self.plan.heads)
        return max(1, min(NUM_GRADIENT_PROGRAMS // (row_blocks * table_heads), num_parts)), row_blocks, table_heads


def head_stride(table: Any) -> int:
    """Return the stride between the heads of a contiguous table of this shape; 0 if they share one."""
    heads, rows, width = table
    return rows * width if heads > 1 else 0
