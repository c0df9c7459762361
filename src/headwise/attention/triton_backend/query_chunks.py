"""Gradients of a table with a row for every relative position, and of the queries and biases that meet it.

The first two are matrix products with dZ, the gradient of Z[i, c] = (q_i + v) · table[c]. The kernel stores the
gradient of each pair's score. Read with rows one shorter than they are, the memory of dZ has a place for each pair:

    dZ[i, j − i + last] = memory[last + i · (width − 1) + j]

dZ is computed for a strip of queries at a time, so memory is a strip's, whatever the length.
"""

from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton_backend.launch import Launch
from headwise.attention.triton_backend.plan import AROUND, Plan, kernels, named, strides

#: Pairs in a strip, unless that is less than 64 queries: 256 MiB in half precision. A strip has no more queries than
#: there are keys, so its dZ has at most twice as many numbers.
STRIP = 2**27
#: The length of dZ's rows is a multiple of this: whole tiles, which lie as products like it.
ALIGNED = 128


def gradients(
    plan: Plan, tensors: dict[str, Tensor | None], d_table: Tensor, d_bias: Tensor | None, d_log_sums: bool
) -> Tensor:
    """Run `query_gradients` strip by strip, fill the gradients of the queries, the table and the scores' bias, and
    return those of the biases u and v."""
    batch, heads, n, m = plan.batch, plan.heads, plan.n, plan.m
    size = max(min(STRIP // (batch * heads * m), m) // 64 * 64, 64)
    total = torch.zeros_like(d_table, dtype=torch.float32)
    blocks = [-(-n // plan.tile(kind).rows) for kind in ("queries", "strips")]
    of_keys, of_table = shares = [total.new_empty(batch, heads, count, plan.width) for count in blocks]
    tensors = {**tensors, "total_ptr": total[:, AROUND:], "of_keys_ptr": of_keys, "of_table_ptr": of_table}
    dz = d_table.new_empty(0, 0, 0, 0)
    for start in range(0, n, size):
        count = min(size, n - start)
        if dz.shape[2] != count:
            # Zeros where no strip has a pair yet: later ones see the same keys, or more.
            dz = d_table.new_empty(heads, batch, count, -(-(count + m) // ALIGNED) * ALIGNED)
            for unseen in [dz] if plan.causal else [dz[..., :count], dz[..., m:]]:
                unseen.zero_()
            tensors["relative_q_ptr"] = relative_q = d_table.new_empty(batch, heads, count, plan.width)
        pairs = by_pair(dz, m)
        tensors |= {"dz_ptr": dz, "d_pairs_ptr": pairs}
        run = plan.launches(_launches, dz, total, relative_q, tensors["do_ptr"], start, d_log_sums)
        run["query_gradients"](tensors)
        run["strip_gradients"](tensors)
        if d_bias is not None:
            part = d_bias[:, :, start : start + count] if d_bias.shape[2] > 1 else d_bias
            part += pairs.sum_to_size(part.shape)
    torch.mul(total, plan.scale, out=d_table)
    return torch.stack([share.sum((0, 2)) for share in shares])


def by_pair(dz: Tensor, m: int) -> Tensor:
    """The places in dZ (H, B, rows, width) of all pairs, (B, H, rows, M)."""
    heads, batch, count, width = dz.shape
    of_head, of_text, _, _ = dz.stride()
    return dz.as_strided((batch, heads, count, m), (of_text, of_head, width - 1, 1), count - 1)


def _launches(
    plan: Plan, dz: Tensor, total: Tensor, relative_q: Tensor, d_output: Tensor, start: int, d_log_sums: bool
) -> dict[str, Launch]:
    heads, batch, count, width = dz.shape
    of_queries = strides("relative_q", "bhn", relative_q)
    pairs = {**strides("do", "bhn", d_output), **strides("d_pairs", "bhn", by_pair(dz, plan.m)), "queries": count}
    tile = plan.tile("strips")
    arguments: dict[str, Any] = {
        **strides("dz", "hbn", dz),
        **plan.table_strides,
        **strides("total", "hr", total),
        **of_queries,
        **named("dq", "bhn", plan.lying["dq"][1]),
        "B": batch,
        "start": start,
        "count": count,
        "first": plan.n - start - count,  # the row of the table that dZ's first column belongs to
        "rows": plan.table_rows,
        "n": plan.n,
        "m": plan.m,
        "scale": plan.scale,
        "OPT": plan.options(tile),
    }
    grid = (batch * -(-count // tile.rows) + width // tile.columns, heads, 1)
    return {
        "query_gradients": plan.launch(
            "query_gradients", "queries", heads, start=start, d_pairs=True, d_log_sums=d_log_sums, **pairs, **of_queries
        ),
        "strip_gradients": Launch(kernels()["strip_gradients"], grid, tile, arguments),
    }
