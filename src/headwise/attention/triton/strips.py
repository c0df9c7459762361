"""Gradients of a table with a row for every relative position, and of the queries that meet it.

Both are matrix products with dZ, the gradient of Z[i, c] = relative_q_i · table[c]. The kernel stores the gradient of
each pair's score. Read with rows one shorter than they are, the memory of dZ has a place for each pair:

    dZ[i, j − i + last] = memory[last + i · (width − 1) + j]

dZ is computed for a strip of queries at a time, so memory is a strip's, whatever the length.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from headwise.attention.triton.call import Call

#: Numbers in a strip's dZ: 128 MiB in half precision.
STRIP = 2**26
#: The length of dZ's rows is a multiple of this, which matrix products like.
ALIGNED = 16


def gradients(
    call: Call, store: Callable[[Tensor, int], None], d_relative_q: Tensor, d_table: Tensor, d_bias: Tensor | None
) -> None:
    """Fill the gradients; `store(pairs, start)` stores those of the scores of a strip's pairs, (B, H, rows, M)."""
    assert call.relative_q is not None
    assert call.table is not None
    batch, heads, n, m, width = call.batch, call.heads, call.n, call.m, call.width
    size = max(STRIP // (batch * heads * m) // 64 * 64, 64)
    table = torch.nn.functional.pad(call.table, (0, 0, 0, ALIGNED))
    total = torch.zeros_like(table, dtype=torch.float32)
    dz = table.new_empty(0, 0, 0, 0)
    for start in range(0, n, size):
        count = min(size, n - start)
        keys = min(m, call.offset + start + count) if call.causal else m
        if dz.shape[2] != count:  # zeros stay where no strip has a pair yet: later strips see the same keys, or more
            dz = table.new_zeros(heads, batch, count, aligned(count + m))
        store(pairs := by_pair(dz, m), start)
        rows, seen, first = slice(start, start + count), aligned(count + keys), n - start - count
        columns = slice(first, first + seen)
        flat = dz.view(heads, batch * count, -1)[..., :seen]
        of_queries = (flat @ table[:, columns]).view(heads, batch, count, width)
        torch.mul(of_queries.transpose(0, 1), call.scale, out=d_relative_q[:, :, rows])
        queries = call.relative_q[:, :, rows].transpose(0, 1).reshape(heads, batch * count, width)
        total[:, columns] += flat.mT @ queries
        if d_bias is not None:
            part = d_bias[:, :, rows] if d_bias.shape[2] > 1 else d_bias
            part += pairs.sum_to_size(part.shape)
    d_table.copy_(total[:, : d_table.shape[1]] * call.scale)


def by_pair(dz: Tensor, m: int) -> Tensor:
    """The places in dZ (H, B, rows, width) of all pairs, (B, H, rows, M)."""
    heads, batch, count, width = dz.shape
    of_head, of_text, _, _ = dz.stride()
    return dz.as_strided((batch, heads, count, m), (of_text, of_head, width - 1, 1), count - 1)


def aligned(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED
