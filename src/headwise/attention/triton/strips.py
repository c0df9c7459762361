"""Tables with a row for every relative position (Transformer-XL), a strip of queries at a time.

In a strip the table's part of the scores is a matrix product, Z[i, c] = relative_q_i · table[c], and the pairs (i, j)
that share a difference j − i lie on its diagonals. Read with rows one shorter than they are, the same memory is the
bias of each pair:

    bias[i, j] = Z[i, j − i + last] = memory[last + i · (width − 1) + j]

So the kernels need to know of a bias only, the products go to the fastest matrix product there is, and memory is a
strip's, whatever the length. (Skewing inside a kernel's tile, by `tl.gather`, was slower.)
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention.triton.call import Call

#: Numbers in a strip's Z: 128 MiB in half precision.
STRIP = 2**26
ALIGNED = 16


@dataclass
class Strip:
    """A strip of queries of one call."""

    call: Call
    rows: slice  # of the queries
    keys: int  # how many of the keys it can see
    table: Tensor  # the rows that it meets of the table, scaled and padded

    @property
    def place(self) -> tuple[slice, slice, slice]:
        return slice(None), slice(None), self.rows

    def relative_q(self) -> Tensor:
        q: Tensor = self.call.relative_q[self.place]
        return q

    def products(self) -> Tensor:
        """Z, of a scaled table."""
        return self.relative_q() @ self.table.mT

    def pairs(self, z: Tensor) -> Tensor:
        """Z read as one number a pair."""
        batch, heads, n, width = z.shape
        strides = (heads * n * width, n * width, width - 1, 1)
        return z.as_strided((batch, heads, n, self.keys), strides, z.storage_offset() + n)

    def arguments(self, bias: Tensor) -> tuple[Any, ...]:
        """The call's arguments for this strip, with the position's part of the scores as a bias."""
        call, rows, keys = self.call, self.rows, slice(0, self.keys)
        if call.bias is not None:
            bias = bias + self.part(call.bias)
        seed = None if call.seed is None else call.seed + call.batch * call.heads * rows.start
        return (
            call.q[self.place],
            call.k[:, :, keys],
            call.v[:, :, keys],
            *[None] * 4,
            bias,
            None if call.mask is None else self.part(call.mask),
            None if call.key_padding is None else call.key_padding[:, keys],
            None if call.query_padding is None else call.query_padding[:, rows],
            *[None] * 2,
            seed,
            call.scale,
            call.offset + rows.start,
            call.causal,
            False,
            0,
            False,
            call.dropout,
            call.want_received,
            call.want_squares,
        )

    def part(self, x: Tensor) -> Tensor:
        """Of a mask or bias (B or 1, H or 1, N or 1, M or 1) what concerns the strip."""
        rows = self.rows if x.shape[2] > 1 else slice(None)
        return x[:, :, rows, : self.keys if x.shape[3] > 1 else None]


def strips(call: Call) -> Iterator[Strip]:
    """All strips, from the first query on."""
    n, m = call.n, call.m
    size = STRIP // max(1, call.batch * call.heads * m) // 64 * 64
    size = min(max(size, 64), n)
    # An empty row before and some after, so that the products' rows are of a length that matrix products like.
    table = torch.nn.functional.pad(call.table * call.scale, (0, 0, 1, 2 * ALIGNED))
    for start in range(0, n, size):
        stop = min(start + size, n)
        keys = min(m, call.offset + stop) if call.causal else m
        width = -(-(stop - start + keys) // ALIGNED) * ALIGNED
        yield Strip(call, slice(start, stop), keys, table[:, n - stop : n - stop + width])


def forward(call: Call, solve: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Output, log-sums, received and squares; `solve` is the forward pass without a table."""
    output, log_sums, received, _, squares = results = call.outputs()
    received.zero_()
    for strip in strips(call):
        arguments = strip.arguments(strip.pairs(strip.products()).contiguous())
        output[strip.place], log_sums[strip.place], of_strip, _, of_rows = solve(*arguments)
        if call.want_squares:
            squares[strip.place] = of_rows
        if call.want_received:
            received[..., : strip.keys] += of_strip
    return results


def backward(
    call: Call, solve: Callable[..., tuple[Tensor, ...]], needs_bias: bool, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """All gradients; `solve` is the backward pass without a table, to which a place for the bias' can be given."""
    output, log_sums, bins, squares, d_output, d_log_sums, d_received, d_bins, d_squares = tensors
    dq, dk, dv, _, _, d_relative_q, d_table, d_bias = grads = call.gradients(needs_bias)
    sums = {name: torch.zeros_like(x, dtype=torch.float32) for name, x in (("k", dk), ("v", dv))}
    d_padded = torch.zeros(
        call.heads, call.table.shape[1] + 1 + 2 * ALIGNED, call.width, dtype=torch.float32, device=dq.device
    )
    d_bias.zero_()
    for strip in strips(call):
        dz = torch.zeros_like(z := strip.products())
        bias = strip.pairs(z).contiguous()
        d_pairs = torch.zeros_like(bias)
        arguments = strip.arguments(bias)
        o, lse, do, d_lse = (x[strip.place] for x in (output, log_sums, d_output, d_log_sums))
        of_rows = [x[strip.place].contiguous() if call.want_squares else x for x in (squares, d_squares)]
        g = d_received[..., : strip.keys] if call.want_received else d_received
        saved = (o.contiguous(), lse.contiguous(), bins, of_rows[0])
        of_strip = solve(*arguments, True, *saved, do, d_lse, g, d_bins, of_rows[1], into=d_pairs)
        strip.pairs(dz).copy_(d_pairs)
        dq[strip.place] = of_strip[0]
        sums["k"][:, :, : strip.keys] += of_strip[1]
        sums["v"][:, :, : strip.keys] += of_strip[2]
        if needs_bias:
            into = strip.part(d_bias)
            into += d_pairs.sum_to_size(into.shape)
        d_relative_q[strip.place] = dz @ strip.table
        start = call.n - strip.rows.stop
        part = (dz.mT @ strip.relative_q()).sum(dim=0, dtype=torch.float32)
        d_padded[:, start : start + part.shape[1]] += part
    dk.copy_(sums["k"])
    dv.copy_(sums["v"])
    d_table.copy_(d_padded[:, 1 : 1 + call.table.shape[1]] * call.scale)
    return grads
