"""Cached calls with dense tables of relative positions (Transformer-XL, DeBERTa) whose queries fit into one chunk.

`transformer_xl.py` explains the backward pass and dz.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.attention.triton_backend.cached_passes import BoundCall, run_planned_backward
from headwise.attention.triton_backend.launch import Launch, kernels
from headwise.attention.triton_backend.layouts import named_strides
from headwise.attention.triton_backend.passes import backward_launches, forward_launches
from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
from headwise.attention.triton_backend.programs import BoundLaunch, Buffer, Gradient, Program
from headwise.attention.triton_backend.tile_sizes import num_blocks
from headwise.attention.triton_backend.transformer_xl import (
    bias_launches,
    chunk_launches,
    dz_shape,
    is_zeroed_whole,
    key_chunk_launches,
    max_chunk_size,
    table_options,
)


def is_one_chunk(plan: Plan) -> bool:
    """Return whether a plan with a dense table computes all gradients in one chunk, and `DenseCall` covers it."""
    has_same_blocks = plan.tile("dq").block_n == plan.tile("dense_table").block_n
    chunk_is_enough = plan.n <= max_chunk_size(plan, plan.m) and is_zeroed_whole(plan.n, plan.m)
    if plan.query_table is not None:
        chunk_is_enough &= plan.m <= max_chunk_size(plan, plan.n) and is_zeroed_whole(plan.m, plan.n)
        chunk_is_enough &= not plan.causal
    return has_same_blocks and chunk_is_enough and not plan.has_window and not plan.non_contiguous


class DenseCall(BoundCall):
    """Calls with dense tables. If some tensors are frozen, `passes.py` computes the gradients.

    Kernels get the tables without the padding before their rows. The gradients of scores are stored twice as wide as
    there are keys (dz), so that a diagonal is a column; `d_scores` is the same memory by pairs.
    """

    @property
    def _views(self) -> dict[str, str | tuple[str, int]]:
        """The tables without the padding before their rows."""
        strides = {"dense_table": self.plan.table_strides, "query_table": self.plan.query_table_strides}
        return {name: (name, TABLE_PADDING * by_name[f"stride_{name}_r"]) for name, by_name in strides.items()}

    def _build_forward(self) -> Program:
        launch = BoundLaunch(self.plan.launches(forward_launches)["fwd"], (*self.names, "o", "lse"), self._views)
        return Program([launch], [self.output_buffer("o"), self.lse_buffer])

    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        program = self.find_backward(d_output, needs_grad)
        if program is None:
            return run_planned_backward(self, saved, d_output, needs_grad)
        return program.run_backward((*saved, d_output))

    def _build_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> Program | None:
        plan = self.plan
        has_query_table = plan.query_table is not None
        if not all(needs_grad[: 5 + has_query_table]):
            return None
        rows, blocks = plan.table_rows + 2 * TABLE_PADDING, plan.query_blocks
        buffers: dict[str, Buffer | None] = {
            "delta": self.lse_buffer,
            **self.gradient_buffers(frozenset(("q", "k", "v"))),
            "u_dot_k": Buffer((plan.batch, plan.heads, plan.m), torch.float32),
            "v_dot_table": Buffer((plan.heads, rows), torch.float32),
            "dz": self._dz_buffer(plan.n, plan.m),
            "relative_q": Buffer((*plan.query_shape, plan.width), plan.q.dtype),
            "d_table": Buffer((plan.heads, rows, plan.width), torch.float32, is_zero=True),
            "partials": Buffer((2, plan.batch, plan.heads, blocks, plan.width), torch.float32),
        }
        if has_query_table:
            key_blocks = num_blocks(plan.m, plan.tile("dense_table").block_n)
            buffers["key_dz"] = self._dz_buffer(plan.m, plan.n)
            buffers["d_query_table"] = buffers["d_table"]
            buffers["unused_partials"] = Buffer((plan.batch, plan.heads, key_blocks, plan.width), torch.float32)
        names = (*self.names, "o", "lse", "do", *buffers)
        gradients = {name: Gradient(names.index(f"d{name}")) for name in ("q", "k", "v")}
        gradients["bias_uv"] = Gradient(names.index("partials"), (1, 3))
        for name, target in (("dense_table", "d_table"), ("query_table", "d_query_table")):
            if target in names:
                gradients[name] = Gradient(names.index(target), scale=plan.scale, dtype=plan.q.dtype)
        launches = self._bind_backward(d_output, names, buffers)
        return Program(launches, list(buffers.values()), [gradients.get(name) for name in self.names])

    def _dz_buffer(self, n: int, m: int) -> Buffer:
        return Buffer(dz_shape(self.plan, n, m), self.plan.q.dtype, is_zero=True)

    def _bind_backward(
        self, d_output: Tensor, names: tuple[str, ...], buffers: dict[str, Buffer | None]
    ) -> list[BoundLaunch]:
        plan = self.plan
        layouts = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in buffers.items() if x}
        dz, d_table = layouts["dz"], layouts["d_table"]
        columns = (0, dz.shape[3])
        queries = plan.launches(chunk_launches, dz, d_table, layouts["relative_q"], d_output, 0, columns, False, True)
        padding = TABLE_PADDING * plan.width
        views: dict[str, str | tuple[str, int]] = {
            **self._views,
            "v_dot_table": ("v_dot_table", TABLE_PADDING),
            "d_scores": ("dz", plan.n - 1),
            "d_table": ("d_table", padding),
            "d_bias_u_partials": "partials",
            "d_bias_v_partials": ("partials", layouts["partials"].numel() // 2),
        }
        bias_v = ("bias_uv", plan.heads * plan.width)
        launches = [
            BoundLaunch(plan.launches(bias_launches)["u_dot_k"], names, {"x": "k", "products": "u_dot_k"}),
            BoundLaunch(
                self._table_dot_launch(), names, {"x": "dense_table", "bias_uv": bias_v, "products": "v_dot_table"}
            ),
            BoundLaunch(queries["dq"], names, views),
            BoundLaunch(queries["dense_table"], names, views),
        ]
        needs = frozenset(("q", "k", "v", "bias_uv", "dense_table", "query_table"))
        if "key_dz" not in names:
            launch = plan.launches(backward_launches, d_output, None, False, False, needs - {"query_table"})["dkv"]
            return [*launches, BoundLaunch(launch, names, views)]
        keys = plan.launches(key_chunk_launches, layouts["key_dz"], d_table, plan.k, d_output, 0, False, needs, True)
        key_views: dict[str, str | tuple[str, int]] = {
            "dense_table": self._views["query_table"],
            "dq": "dk",
            "d_table": ("d_query_table", padding),
            "dz": "key_dz",
            "d_bias_v_partials": "unused_partials",
            "relative_q": "k",
        }
        return [
            *launches,
            BoundLaunch(keys["dkv"], names, views | {"d_scores": ("key_dz", plan.m - 1)}),
            BoundLaunch(keys["dense_table"], names, key_views),
        ]

    def _table_dot_launch(self) -> Launch:
        """Build the launch of bias_dot_kernel for the table and its padding, whose products are 0."""
        plan, tile = self.plan, self.plan.tile("dense_table")
        rows = plan.table_rows + 2 * TABLE_PADDING
        arguments = {
            **named_strides("x", "bhn", (0, *plan.table_strides.values())),
            **named_strides("products", "bh", (0, rows)),
            "H": plan.heads,
            "GROUP": 1,
            "num_rows": rows,
            "OPT": table_options(plan, tile),
        }
        return Launch(kernels()["bias_dot_kernel"], (-(-rows // tile.block_n), plan.heads, 1), tile, arguments)
