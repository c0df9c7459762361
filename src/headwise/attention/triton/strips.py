"""Gradients of a table with a row for every relative position, and of the queries that meet it.

Both are matrix products with dZ, the gradient of Z[i, c] = relative_q_i · table[c]. The kernel stores the gradient of
each pair's score. Read with rows one shorter than they are, the memory of dZ has a place for each pair:

    dZ[i, j − i + last] = memory[last + i · (width − 1) + j]

dZ is computed for a strip of queries at a time, so memory is a strip's, whatever the length.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton.call import Call, kernels, strides
from headwise.attention.triton.launch import Launch, Tile, launches

#: Numbers in a strip's dZ: 128 MiB in half precision.
STRIP = 2**26
#: The length of dZ's rows is a multiple of this: whole tiles, which lie as products like it.
ALIGNED = 128


def gradients(
    call: Call, store: Callable[[Tensor, int], None], d_relative_q: Tensor, d_table: Tensor, d_bias: Tensor | None
) -> None:
    """Fill the gradients; `store(pairs, start)` stores those of the scores of a strip's pairs, (B, H, rows, M)."""
    batch, heads, n, m = call.batch, call.heads, call.n, call.m
    size = max(STRIP // (batch * heads * m) // 64 * 64, 64)
    total = torch.zeros_like(d_table, dtype=torch.float32)
    dz = call.q.new_empty(0, 0, 0, 0)
    for start in range(0, n, size):
        count = min(size, n - start)
        if dz.shape[2] != count:  # zeros stay where no strip has a pair yet: later strips see the same keys, or more
            dz = call.q.new_zeros(heads, batch, count, -(-(count + m) // ALIGNED) * ALIGNED)
        store(pairs := by_pair(dz, m), start)
        tensors = call.tensors(dz_ptr=dz, d_relative_q_ptr=d_relative_q, total_ptr=total)
        run = launches(_launches, call, dz, d_relative_q, start)
        run["relative_query_gradients"](tensors)
        run["table_gradients"](tensors)
        if d_bias is not None:
            part = d_bias[:, :, start : start + count] if d_bias.shape[2] > 1 else d_bias
            part += pairs.sum_to_size(part.shape)
    torch.mul(total, call.scale, out=d_table)


def by_pair(dz: Tensor, m: int) -> Tensor:
    """The places in dZ (H, B, rows, width) of all pairs, (B, H, rows, M)."""
    heads, batch, count, width = dz.shape
    of_head, of_text, _, _ = dz.stride()
    return dz.as_strided((batch, heads, count, m), (of_text, of_head, width - 1, 1), count - 1)


def _launches(call: Call, dz: Tensor, d_relative_q: Tensor, start: int) -> dict[str, Launch]:
    heads, batch, count, width = dz.shape
    tile = Tile(32, 32) if dz.dtype == torch.float32 or call.width > 128 else Tile(64, 64, 4, 4)
    arguments: dict[str, Any] = {
        **strides("dz", "hbn", dz),
        **strides("table", "hr", call.surrounded),
        **strides("relative_q", "bhn", call.relative_q),
        **strides("d_relative_q", "bhn", d_relative_q),
        "B": batch,
        "start": start,
        "count": count,
        "first": call.n - start - count,  # the row of the table that dZ's first column belongs to
        "rows": call.n + call.m - 1,
        "m": call.m,
        "scale": call.scale,
        "OPT": call.options(tile),
    }
    of_queries, of_rows = (-(-count // tile.rows), heads, batch), (width // tile.columns, heads, 1)
    return {
        "relative_query_gradients": Launch(kernels()["relative_query_gradients"], of_queries, tile, arguments),
        "table_gradients": Launch(kernels()["table_gradients"], of_rows, tile, arguments),
    }
