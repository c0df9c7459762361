"""Cached calls with clipped tables of relative positions (Shaw et al.), including the products with the tables.

The forward pass multiplies the queries with the key table, and adds the products of the sums of weights by relative
position with the value table to the output. The backward pass is the reverse:

    relative_scores = q · key_tableᵀ              d_offset_sums = dO · value_tableᵀ
    fwd_kernel (offset_sums)                      bwd_dq_kernel (d_relative_scores), bwd_dkv_kernel
    O += offset_sums · value_table                dQ += d_relative_scores · key_table
                                                  d_key_table = d_relative_scoresᵀ · q
                                                  d_value_table = offset_sumsᵀ · dO

If the tables have few rows, the three kernels compute all products but the last two (`staged_tables.py`), except for
packed sequences.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headwise import _compat
from headwise.attention.triton_backend.cached_passes import BoundCall
from headwise.attention.triton_backend.launch import Launch, Tile, kernels
from headwise.attention.triton_backend.layouts import named_strides, padded_rows
from headwise.attention.triton_backend.passes import StagedTables, backward_launches, forward_launches
from headwise.attention.triton_backend.programs import BoundLaunch, Buffer, Gradient, Program
from headwise.attention.triton_backend.tile_sizes import num_blocks, power_of_two

#: About how many programs compute the gradient of a table.
NUM_GRADIENT_PROGRAMS = 256

#: The largest relative position of tables whose products the kernels compute: shared memory holds 64 columns.
MAX_STAGED_OFFSET = 31

#: And the largest width: with 128 columns, registers are spilled.
MAX_STAGED_WIDTH = 64

#: The results of the forward pass that the backward pass needs.
RESULTS = ("o", "lse", "relative_scores", "edge_scores", "offset_sums")


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

    num_results = len(RESULTS)

    @cached_property
    def staged_tables(self) -> StagedTables | None:
        """The tables, if kernels compute the products with them."""
        plan = self.plan
        is_possible = plan.max_offset <= MAX_STAGED_OFFSET and plan.q.dtype != torch.float32 and not plan.has_distance
        is_possible = is_possible and max(plan.width, plan.value_width) <= MAX_STAGED_WIDTH and plan.seq_starts is None
        if not is_possible or not (plan.can_reserve_smem or _compat.is_interpreted(kernels()["fwd_kernel"])):
            return None
        return StagedTables(
            *[0 if table is None else head_stride(table) for table in (self.key_table, self.value_table)]
        )

    def _build_forward(self) -> Program:
        plan, dtype = self.plan, self.plan.q.dtype
        if self.staged_tables is not None:
            return self._build_staged_forward(self.staged_tables)
        buffers: dict[str, Buffer | None] = {
            "o": self.output_buffer("o"),
            "lse": self.lse_buffer,
            **self._scores_buffers("relative_scores", "edge_scores", self.key_table),
            "offset_sums": None,
        }
        if self.value_table is not None:  # the first kernel zeroes it if there is one
            buffers["offset_sums"] = Buffer(self._sums_shape, dtype, is_zero=self.key_table is None)
        names = (*self.names, *buffers)
        launches = []
        if self.key_table is not None:
            aliases = {"x": "q", "table": "key_table", "scores": "relative_scores", "edges": "edge_scores"}
            launch = self._scores_launch(plan.q.stride(), self.key_table, zeros=self.value_table is not None)
            launches.append(BoundLaunch(launch, names, aliases | {"zeros": "offset_sums"}))
        launches.append(BoundLaunch(plan.launches(forward_launches)["fwd"], names))
        if self.value_table is not None:
            launch = self._add_launch(plan.output_layouts["o"][1], self.value_table)
            launches.append(BoundLaunch(launch, names, {"sums": "offset_sums", "table": "value_table", "out": "o"}))
        return Program(launches, list(buffers.values()))

    def _build_staged_forward(self, tables: StagedTables) -> Program:
        """Build the forward pass of one kernel."""
        buffers: dict[str, Buffer | None] = {
            "o": self.output_buffer("o"),
            "lse": self.lse_buffer,
            **self._staged_buffers("relative_scores", "edge_scores", self.key_table),
            "offset_sums": None if self.value_table is None else Buffer(self._sums_shape, self.plan.q.dtype),
        }
        launch = self._launches(forward_launches, tables)["fwd"]
        return Program([BoundLaunch(launch, (*self.names, *buffers))], list(buffers.values()))

    def _launches(self, build: Callable[..., dict[str, Launch]], *args: Any) -> dict[str, Launch]:
        """Return build(plan, *args). Kernels that read the tables have launches of their own for each call.

        The plan does not contain dtype and alignment of the tables, for which Triton compiles other code.
        """
        return self.plan.launches(build, *args) if self.staged_tables is None else build(self.plan, *args)

    def _staged_buffers(self, scores: str, edges: str, table: Any) -> dict[str, Buffer | None]:
        """Return the buffers of products that kernels compute, by these names; edge columns are not rounded."""
        buffers = self._scores_buffers(scores, edges, table)
        if (buffer := buffers[edges]) is not None:
            buffers[edges] = buffer._replace(dtype=torch.float32)
        if self.plan.is_short:  # bwd_dkv_kernel computes them again
            buffers[scores] = None
        return buffers

    @property
    def _sums_shape(self) -> tuple[int, ...]:
        """The shape of a number for each query and row of a table."""
        return *self.plan.query_shape, padded_rows(self.plan.max_offset)

    def _scores_buffers(self, scores: str, edges: str, table: Any) -> dict[str, Buffer | None]:
        """Return the buffers of the products of queries with a table and of their edge columns, by these names."""
        if table is None:
            return {scores: None, edges: None}
        batch, heads, n = self.plan.query_shape
        dtype = self.plan.q.dtype
        return {scores: Buffer(self._sums_shape, dtype), edges: Buffer((batch, heads, 2, n), dtype)}

    def _build_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> Program | None:
        needs = self.needed_names(needs_grad)
        if "q" not in needs:
            return None
        buffers: dict[str, Buffer | None] = {
            "delta": self.lse_buffer,
            **self.gradient_buffers(needs),
            **self._scores_buffers("d_offset_sums", "d_edge_sums", self.value_table),
            "d_relative_scores": None,
            "d_relative_bias_partials": self.bias_partials_buffer(needs),
        }
        if self.staged_tables is not None:
            buffers |= self._staged_buffers("d_offset_sums", "d_edge_sums", self.value_table)
        if self.key_table is not None:
            # Otherwise the first kernel zeroes it, or bwd_dq_kernel stores all of it.
            is_zero = self.value_table is None and self.staged_tables is None
            buffers["d_relative_scores"] = Buffer(self._sums_shape, self.plan.q.dtype, is_zero=is_zero)
        tables = {name: shape for name, shape in self._tables.items() if name in needs}
        partials = self._partials_buffers(tables)
        names = (*self.names, *RESULTS, "do", *buffers, *partials)
        gradients: dict[str, Gradient] = {
            name: Gradient(names.index(f"d{name}")) for name in ("q", "k", "v") if name in needs
        }
        if "relative_bias" in needs:
            gradients["relative_bias"] = Gradient(names.index("d_relative_bias_partials"), (0, 1, 3))
        if "partials" in partials:
            gradients |= {name: Gradient(names.index("partials"), (1,), index) for index, name in enumerate(tables)}
        else:
            gradients |= {name: Gradient(names.index(f"{name}_partials"), (0,)) for name in tables}
        launches = self._bind_backward(d_output, needs, names, partials)
        return Program(launches, [*buffers.values(), *partials.values()], [gradients.get(name) for name in self.names])

    @property
    def _tables(self) -> dict[str, Any]:
        """The shapes of the tables, by name."""
        tables = {"key_table": self.key_table, "value_table": self.value_table}
        return {name: shape for name, shape in tables.items() if shape is not None}

    def _partials_buffers(self, tables: dict[str, Any]) -> dict[str, Buffer]:
        """Return the buffers of the partial sums of the tables' gradients: a common one for two tables of one shape."""
        shapes = {name: (self._gradient_grid(shape)[0], *shape) for name, shape in tables.items()}
        if len(shapes) == 2 and len(set(shapes.values())) == 1:
            return {"partials": Buffer((2, *shapes["key_table"]), torch.float32)}
        return {f"{name}_partials": Buffer(shape, torch.float32) for name, shape in shapes.items()}

    def _bind_backward(
        self, d_output: Tensor, needs: frozenset[str], names: tuple[str, ...], partials: dict[str, Buffer]
    ) -> list[BoundLaunch]:
        plan = self.plan
        kernel_needs = needs | {"relative_scores"} if self.key_table is not None else needs
        has_sums = self.value_table is not None
        is_staged = self.staged_tables is not None
        launches = self._launches(
            backward_launches, d_output, None, False, False, kernel_needs, has_sums, self.staged_tables
        )
        bound = []
        if self.value_table is not None and not is_staged:
            aliases = {"x": "do", "table": "value_table", "scores": "d_offset_sums", "edges": "d_edge_sums"}
            launch = self._scores_launch(d_output.stride(), self.value_table, zeros=self.key_table is not None)
            bound.append(BoundLaunch(launch, names, aliases | {"zeros": "d_relative_scores"}))
        bound.append(BoundLaunch(launches["dq"], names))
        if not needs.isdisjoint(("k", "v")):
            bound.append(BoundLaunch(launches["dkv"], names))
        if self.key_table is not None and not is_staged:
            launch = self._add_launch(plan.output_layouts["dq"][1], self.key_table)
            bound.append(BoundLaunch(launch, names, {"sums": "d_relative_scores", "table": "key_table", "out": "dq"}))
        # The gradient of a table: the tensors that are multiplied.
        products = {"key_table": ("d_relative_scores", "q"), "value_table": ("offset_sums", "do")}
        strides = {"q": plan.q.stride(), "do": d_output.stride()}
        for index, (name, shape) in enumerate(self._tables.items()):
            if name in needs:
                sums, x = products[name]
                target: Any = f"{name}_partials"
                if "partials" in partials:
                    target = "partials", index * math.prod(partials["partials"].shape[1:])
                launch = self._gradient_launch(strides[x], shape)
                bound.append(BoundLaunch(launch, names, {"sums": sums, "x": x, "partials": target}))
        return bound

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
