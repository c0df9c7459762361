"""Cached calls with dense tables of relative positions (Transformer-XL, DeBERTa).

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
    Chunk,
    bias_launches,
    chunk_launches,
    dz_shape,
    key_chunk_launches,
    max_chunk_size,
    stores_dz_tiles,
    table_options,
    view_by_pair,
    whole_blocks,
)


def can_bind(plan: Plan) -> bool:
    """Return whether `DenseCall` covers a plan with a dense table."""
    has_same_blocks = plan.tile("dq").block_n == plan.tile("dense_table").block_n
    # The pairs of a chunk of keys must be those of the next one, too: dz is zeroed once.
    has_changing_pairs = plan.query_table is not None and plan.causal
    return has_same_blocks and not has_changing_pairs and not plan.has_window and not plan.non_contiguous


class DenseCall(BoundCall):
    """Calls with dense tables. If q, k or v needs no gradient, `passes.py` computes the others.

    Kernels get the tables without the padding before their rows. The gradients of a chunk's scores are stored (dz) so
    that a diagonal is a column; `d_scores` is the same memory by pairs. The last chunk has a dz of its own if it is
    smaller than the others.
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
        self, saved: Sequence[Tensor], d_outputs: Sequence[Tensor], needs_grad: tuple[bool, ...]
    ) -> Sequence[Tensor | None]:
        program = self.find_backward(d_outputs[0], needs_grad)
        if program is None:
            return run_planned_backward(self, saved, d_outputs, needs_grad)
        return program.run_backward((*saved, *d_outputs))

    def _build_backward(self, d_output: Tensor, needs_grad: tuple[bool, ...]) -> Program | None:
        plan = self.plan
        has_query_table = plan.query_table is not None
        needed = self.needed_names(needs_grad)
        if not needed >= {"q", "k", "v"}:
            return None
        tables = {"dense_table": "d_table"} | ({"query_table": "d_query_table"} if has_query_table else {})
        rows, blocks = plan.table_rows + 2 * TABLE_PADDING, plan.query_blocks
        chunk_size = max(rows for _, rows in self._query_chunks())
        buffers: dict[str, Buffer | None] = {
            "delta": self.lse_buffer,
            **self.gradient_buffers(frozenset(("q", "k", "v"))),
            "u_dot_k": Buffer((plan.batch, plan.heads, plan.m), torch.float32),
            "v_dot_table": Buffer((plan.heads, rows), torch.float32),
            **self._dz_buffers("dz", self._query_chunks(), plan.m),
            "relative_q": Buffer((plan.heads, plan.batch, chunk_size, plan.width), plan.q.dtype),
            **{
                target: Buffer(
                    (plan.heads, rows, plan.width) if name in needed else (1, 1, 1), torch.float32, is_zero=True
                )
                for name, target in tables.items()
            },
            "partials": Buffer((2, plan.batch, plan.heads, blocks, plan.width), torch.float32),
        }
        if has_query_table:
            key_blocks = num_blocks(plan.m, plan.tile("dense_table").block_n)
            buffers |= self._dz_buffers("key_dz", self._chunks(plan.m, plan.n), plan.n)
            buffers["unused_partials"] = Buffer((plan.batch, plan.heads, key_blocks, plan.width), torch.float32)
        names = (*self.names, "o", "lse", "do", *buffers)
        gradients = {name: Gradient(names.index(f"d{name}")) for name in ("q", "k", "v")}
        if "bias_uv" in needed:
            gradients["bias_uv"] = Gradient(names.index("partials"), (1, 3))
        for name, target in tables.items():
            if name in needed:
                gradients[name] = Gradient(names.index(target), scale=plan.scale, dtype=plan.q.dtype)
        launches = self._bind_backward(d_output, names, buffers, needed)
        return Program(launches, list(buffers.values()), [gradients.get(name) for name in self.names])

    def _chunks(self, n: int, m: int) -> list[tuple[int, int]]:
        """Return start and size of each chunk of n queries with m keys, or of n keys with m queries."""
        size = max_chunk_size(self.plan, m)
        return [(start, min(size, n - start)) for start in range(0, n, size)]

    def _query_chunks(self) -> list[tuple[int, int]]:
        """Return start and number of rows of each chunk of queries: whole blocks if tiles of dz are stored."""
        chunks = self._chunks(self.plan.n, self.plan.m)
        if not stores_dz_tiles(self.plan):
            return chunks
        return [(start, whole_blocks(self.plan, size)) for start, size in chunks]

    def _dz_buffers(self, name: str, chunks: list[tuple[int, int]], m: int) -> dict[str, Buffer | None]:
        """Return the buffers of dz, by size of chunk."""
        sizes = {size for _, size in chunks}
        dtype = self.plan.q.dtype
        return {f"{name}_{size}": Buffer(dz_shape(self.plan, size, m), dtype, is_zero=True) for size in sizes}

    def _chunk(self, dz: Tensor, m: int) -> Chunk:
        """Return the layout of a chunk with m keys, or of one of keys with m queries."""
        return Chunk(dz, view_by_pair(dz, m), 0, (0, dz.shape[3]))

    def _bind_backward(
        self, d_output: Tensor, names: tuple[str, ...], buffers: dict[str, Buffer | None], needed: frozenset[str]
    ) -> list[BoundLaunch]:
        plan = self.plan
        layouts = {name: torch.empty(x.shape, dtype=x.dtype, device="meta") for name, x in buffers.items() if x}
        padding = TABLE_PADDING * plan.width
        views: dict[str, str | tuple[str, int]] = {
            **self._views,
            "v_dot_table": ("v_dot_table", TABLE_PADDING),
            "d_table": ("d_table", padding if "dense_table" in needed else 0),
            "d_bias_u_partials": "partials",
            "d_bias_v_partials": ("partials", layouts["partials"].numel() // 2),
        }
        bias_v = ("bias_uv", plan.heads * plan.width)
        launches = [
            BoundLaunch(plan.launches(bias_launches)["u_dot_k"], names, {"x": "k", "products": "u_dot_k"}),
            BoundLaunch(
                self._table_dot_launch(), names, {"x": "dense_table", "bias_uv": bias_v, "products": "v_dot_table"}
            ),
        ]
        d_table, needs_table = layouts["d_table"], "dense_table" in needed
        has_tiles = stores_dz_tiles(plan)
        for start, size in self._query_chunks():
            dz = f"dz_{size}"
            chunk = self._chunk(layouts[dz], plan.m)
            # The first rows of its buffer, in the order of dz.
            relative_q = layouts["relative_q"].new_empty(plan.heads, plan.batch, size, plan.width).transpose(0, 1)
            run = plan.launches(
                chunk_launches, *chunk, d_table, relative_q, d_output, start, False, needs_table, has_tiles
            )
            chunk_views = views | {"dz": dz, "d_scores": (dz, size - 1)}
            launches += [BoundLaunch(run[kernel], names, chunk_views) for kernel in ("dq", "dense_table")]
        needs = frozenset(("q", "k", "v", "bias_uv", "dense_table", "query_table"))
        if plan.query_table is None:
            launch = plan.launches(backward_launches, d_output, None, False, False, needs - {"query_table"})["dkv"]
            return [*launches, BoundLaunch(launch, names, views)]
        d_table, needs_table = layouts["d_query_table"], "query_table" in needed
        for start, size in self._chunks(plan.m, plan.n):
            dz = f"key_dz_{size}"
            chunk_k = plan.k[:, :, start : start + size]
            chunk = self._chunk(layouts[dz], plan.n)
            run = plan.launches(
                key_chunk_launches, *chunk, d_table, chunk_k, d_output, start, False, needs, needs_table
            )
            key_views: dict[str, str | tuple[str, int]] = {
                "dense_table": self._views["query_table"],
                "dq": "dk",
                "d_table": ("d_query_table", padding if needs_table else 0),
                "dz": dz,
                "d_bias_v_partials": "unused_partials",
                "relative_q": ("k", start * plan.k.stride(2)),
            }
            launches += [
                BoundLaunch(run["dkv"], names, views | {"d_scores": (dz, size - 1)}),
                BoundLaunch(run["dense_table"], names, key_views),
            ]
        return launches

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
