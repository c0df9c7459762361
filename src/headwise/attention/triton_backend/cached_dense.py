"""Cached calls with dense tables of relative positions (Transformer-XL, DeBERTa) whose queries fit into one chunk.

`transformer_xl.py` explains the backward pass and dz.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton_backend.cached_passes import PlannedCall, Results
from headwise.attention.triton_backend.launch import Launch, kernels
from headwise.attention.triton_backend.layouts import named_strides
from headwise.attention.triton_backend.passes import backward_launches, forward_launches
from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
from headwise.attention.triton_backend.programs import BoundLaunch, run_launches
from headwise.attention.triton_backend.transformer_xl import (
    bias_launches,
    chunk_launches,
    key_chunk_launches,
    max_chunk_size,
    new_dz,
    table_options,
    view_by_pair,
)

#: Tensors of the backward pass besides the inputs; views are those without the padding before the first row.
BACKWARD_TENSORS = (
    "o", "lse", "do", "table_view", "query_table_view", "delta", "dq", "dk", "dv", "u_dot_k", "v_dot_table",
    "v_dot_table_view", "dz", "d_scores", "relative_q", "d_table_view", "d_bias_u_partials", "d_bias_v_partials",
    "key_dz", "d_key_scores", "d_query_table_view", "unused_partials", "u", "v_bias",
)  # fmt: skip
VIEWS = {"dense_table": "table_view", "query_table": "query_table_view", "v_dot_table": "v_dot_table_view"}


def is_one_chunk(plan: Plan) -> bool:
    """Return whether a plan with a dense table computes all gradients in one chunk, and `DenseCall` covers it."""
    has_same_blocks = plan.tile("dq").block_n == plan.tile("dense_table").block_n
    chunk_is_enough = plan.n <= max_chunk_size(plan, plan.m)
    if plan.query_table is not None:
        chunk_is_enough &= plan.m <= max_chunk_size(plan, plan.n) and not plan.causal
    return has_same_blocks and chunk_is_enough and not plan.has_window and not plan.non_contiguous


class DenseCall(PlannedCall):
    """Calls with dense tables whose launches are kept. If some tensors are frozen, the plan computes the gradients."""

    def __init__(self, names: tuple[str, ...], scalars: tuple[Any, ...], inputs: Sequence[Tensor]) -> None:
        super().__init__(names, scalars, inputs)
        plan = self.plan
        self.table_slot = self.names.index("dense_table")
        self.query_table_slot = self.names.index("query_table") if plan.query_table is not None else None
        launch = plan.launches(forward_launches)["fwd"]
        self.forward_launches = [
            BoundLaunch(launch, (*self.names, "o", "lse", "table_view", "query_table_view"), VIEWS)
        ]
        self._backwards: dict[Any, list[BoundLaunch]] = {}

    def views(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the tables without the padding before their rows."""
        query_table = None if self.query_table_slot is None else inputs[self.query_table_slot][:, TABLE_PADDING:]
        return inputs[self.table_slot][:, TABLE_PADDING:], query_table

    def forward(self, inputs: Sequence[Tensor]) -> Results:
        q = inputs[0]
        output = q.new_empty_strided(*self.plan.output_layouts["o"])
        lse = q.new_empty(self.plan.query_shape, dtype=torch.float32)
        run_launches(self.forward_launches, (*inputs, output, lse, *self.views(inputs)))
        return output, lse

    def backward(
        self, saved: Sequence[Tensor], d_output: Tensor, needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        plan = self.plan
        num_differentiable = 5 + (plan.query_table is not None)
        if not all(needs_grad[:num_differentiable]):
            return super().backward(saved, d_output, needs_grad)
        q, k, lse = saved[0], saved[1], saved[-1]
        bias_uv = saved[self.names.index("bias_uv")]
        rows = plan.table_rows + 2 * TABLE_PADDING
        dq, dk, dv = [q.new_empty_strided(*plan.output_layouts[name]) for name in ("dq", "dk", "dv")]
        dz = new_dz(plan, q, plan.n, plan.m, has_all_pairs=not plan.causal)
        relative_q = q.new_empty((*plan.query_shape, plan.width))
        d_table = lse.new_zeros((plan.heads, rows, plan.width))
        blocks = plan.query_blocks
        partials = lse.new_empty((2, plan.batch, plan.heads, blocks, plan.width))
        v_dot_table = lse.new_empty((plan.heads, rows))
        u_dot_k = lse.new_empty((plan.batch, plan.heads, plan.m))
        key_dz = d_key_scores = d_query_table = unused_partials = None
        if plan.query_table is not None:
            key_dz = new_dz(plan, k, plan.m, plan.n, has_all_pairs=True)
            d_key_scores = view_by_pair(key_dz, plan.n)
            d_query_table = torch.zeros_like(d_table)
            key_blocks = -(-plan.m // plan.tile("dense_table").block_n)
            unused_partials = lse.new_empty((plan.batch, plan.heads, key_blocks, plan.width))  # there is no bias
        u_partials, v_partials = partials.unbind()
        u, v_bias = bias_uv.unbind()
        tensors = (
            *saved, d_output, *self.views(saved), torch.empty_like(lse), dq, dk, dv, u_dot_k, v_dot_table,
            v_dot_table[:, TABLE_PADDING:], dz, view_by_pair(dz, plan.m), relative_q, d_table[:, TABLE_PADDING:],
            u_partials, v_partials, key_dz, d_key_scores,
            None if d_query_table is None else d_query_table[:, TABLE_PADDING:], unused_partials, u, v_bias,
        )  # fmt: skip
        key = (d_output.stride(), d_output.data_ptr() % 16)
        launches = self._backwards.get(key)
        if launches is None:
            launches = self._backwards[key] = self._bind_backward(d_output, dz, relative_q, d_table, k, key_dz)
        run_launches(launches, tensors)
        grads: dict[str, Tensor] = {"q": dq, "k": dk, "v": dv, "bias_uv": partials.sum((1, 3))}
        grads["dense_table"] = torch.mul(d_table, plan.scale, out=torch.empty_like(d_table, dtype=q.dtype))
        if d_query_table is not None:
            out = torch.empty_like(d_query_table, dtype=q.dtype)
            grads["query_table"] = torch.mul(d_query_table, plan.scale, out=out)
        return [grads.get(name) for name in self.names]

    def _bind_backward(
        self, d_output: Tensor, dz: Tensor, relative_q: Tensor, d_table: Tensor, k: Tensor, key_dz: Tensor | None
    ) -> list[BoundLaunch]:
        plan = self.plan
        names = (*self.names, *BACKWARD_TENSORS)
        columns = (0, dz.shape[3])
        queries = plan.launches(chunk_launches, dz, d_table, relative_q, d_output, 0, columns, False, True)
        table_views = VIEWS | {"d_table": "d_table_view"}
        launches = [
            BoundLaunch(
                plan.launches(bias_launches)["u_dot_k"], names, {"x": "k", "bias_uv": "u", "products": "u_dot_k"}
            ),
            BoundLaunch(
                self._table_dot_launch(), names, {"x": "dense_table", "bias_uv": "v_bias", "products": "v_dot_table"}
            ),
            BoundLaunch(queries["dq"], names, VIEWS),
            BoundLaunch(queries["dense_table"], names, table_views),
        ]
        needs = frozenset(("q", "k", "v", "bias_uv", "dense_table", "query_table"))
        if key_dz is None:
            launch = plan.launches(backward_launches, d_output, None, False, False, needs - {"query_table"})["dkv"]
            return [*launches, BoundLaunch(launch, names, VIEWS)]
        keys = plan.launches(key_chunk_launches, key_dz, d_table, k, d_output, 0, False, needs, True)
        key_views = {
            "dense_table": "query_table_view", "dq": "dk", "d_table": "d_query_table_view", "dz": "key_dz",
            "d_bias_v_partials": "unused_partials", "relative_q": "k",
        }  # fmt: skip
        return [
            *launches,
            BoundLaunch(keys["dkv"], names, VIEWS | {"d_scores": "d_key_scores"}),
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
