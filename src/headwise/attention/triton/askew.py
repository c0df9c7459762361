"""Tables with a row for every relative position (Transformer-XL), read askew through a small piece of memory.

The table's part of a score, relative_q_i · table[j − i + n − 1], is a matrix product, z, whose columns are relative
positions; the pairs of one relative position lie on a diagonal of a tile. A product is stored with rows one longer than
they are and read with rows as long as they are: that shifts each row by one more than the row above it.

    stored at i (T + 1) + x + 1  =  i T + j, with j = x + i + 1, where j < T
                                 =  (i + 1) T + j, with j = x + i + 1 − T, else

T is a tile's length, x a column of z. So a product of T columns is the part of one tile above the diagonal (j > i), and of
the tile of the next T keys the part on and below it. For a block of queries each step to the next keys takes one new
product; for a block of keys, where each step has other queries, two, of which half the columns are kept.

Each program has SLOTS such pieces for its own; they are read right after they were written, so they stay in the
processor's cache. All its threads meet (`meet`) between writing a piece and reading it, once a step: what is written
after that goes to a piece that was last read before it.
"""

import triton
import triton.language as tl

SLOTS = tl.constexpr(3)  # two that are read, and one that is written meanwhile
AHEAD = tl.constexpr(True)  # store a step's product one step before it is read


@triton.jit
def slots(scratch, program, OPT: tl.constexpr):
    """A program's pieces of memory."""
    return scratch + program * (SLOTS * OPT.block_n * (OPT.block_n + 1))


@triton.jit
def slot(pieces, step, OPT: tl.constexpr):
    return pieces + ((step + SLOTS) % SLOTS) * (OPT.block_n * (OPT.block_n + 1))


@triton.jit
def product(q, table, stride, first, length, OPT: tl.constexpr):
    """z of a block of queries and the columns from `first` on, zero outside of the table."""
    c, e = first + tl.arange(0, OPT.block_m)[:, None], tl.arange(0, OPT.block_e)[None, :]
    inside = (c >= 0) & (c < length)
    if OPT.width != OPT.block_e:
        inside = inside & (e < OPT.width)
    rows = tl.load(table + c * stride + e, mask=inside, other=0.0)
    return tl.dot(q, tl.trans(rows), input_precision=OPT.precision)


@triton.jit
def put(piece, z, OPT: tl.constexpr):
    """Store a product, queries down, askew."""
    i, x = tl.arange(0, OPT.block_n)[:, None], tl.arange(0, OPT.block_m)[None, :]
    tl.store(piece + i * (OPT.block_n + 1) + x + 1, z.to(piece.dtype.element_ty))


@triton.jit
def got(below, above, in_n, in_m, OPT: tl.constexpr):
    """A tile, queries down or across: on and below the diagonal from one piece, above it from another."""
    at = in_n * OPT.block_m + in_m
    return tl.where(in_m > in_n, tl.load(above + at), tl.load(below + at + OPT.block_m)).to(tl.float32)


@triton.jit
def meet():
    """Wait until all threads of the program are here; what they have written can then be read."""
    tl.debug_barrier()


@triton.jit
def put_next_keys(skew, step, OPT: tl.constexpr):
    """For a block of queries: the product that a step to the next keys needs."""
    q, table, stride, first, length, pieces = skew
    put(slot(pieces, step, OPT), product(q, table, stride, first + step * OPT.block_m, length, OPT), OPT)


@triton.jit
def begin(skew, OPT: tl.constexpr):
    """For a block of queries, before the first step."""
    put_next_keys(skew, -1, OPT)
    if AHEAD:
        put_next_keys(skew, 0, OPT)


@triton.jit
def next_keys(skew, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of queries: the tile of a step, one after the other from 0 on."""
    pieces = skew[5]
    if not AHEAD:
        put_next_keys(skew, step, OPT)
    meet()
    tile = got(slot(pieces, step - 1, OPT), slot(pieces, step, OPT), in_n, in_m, OPT)
    if AHEAD:
        put_next_keys(skew, step + 1, OPT)
    return tile


@triton.jit
def put_next_queries(skew, step, OPT: tl.constexpr):
    """For a block of keys: the products that a block of queries needs, as one."""
    q_ptr, q_n, n, table, stride, first, length, pieces = skew
    rows, e = step * OPT.block_n + tl.arange(0, OPT.block_n)[:, None], tl.arange(0, OPT.block_e)[None, :]
    q = tl.load(q_ptr + rows * q_n + e, mask=(rows < n) & (e < OPT.width), other=0.0)
    first -= step * OPT.block_n
    below = product(q, table, stride, first - OPT.block_m, length, OPT)
    above = product(q, table, stride, first, length, OPT)
    i, x = tl.arange(0, OPT.block_n)[:, None], tl.arange(0, OPT.block_m)[None, :]
    put(slot(pieces, step, OPT), tl.where(x + i + 1 < OPT.block_m, above, below), OPT)


@triton.jit
def begin_queries(skew, step, OPT: tl.constexpr):
    """For a block of keys, before the first step of a loop over queries."""
    meet()
    if AHEAD:
        put_next_queries(skew, step, OPT)


@triton.jit
def next_queries(skew, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of keys: the tile of a step, one after the other in a loop over queries."""
    if not AHEAD:
        put_next_queries(skew, step, OPT)
    meet()
    piece = slot(skew[7], step, OPT)
    tile = got(piece, piece, in_n, in_m, OPT)
    if AHEAD:
        put_next_queries(skew, step + 1, OPT)
    return tile
