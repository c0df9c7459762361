"""Tables with a row for every relative position (Transformer-XL), read askew through a small piece of memory.

The table's part of a score, relative_q_i · table[j − i + n − 1], is a matrix product, z, whose columns are relative
positions; the pairs of one relative position lie on a diagonal of a tile. A product is stored with rows one longer than
they are and read with rows as long as they are, which shifts each row by one more than the row above it:

    stored at i (T + 1) + x + 1  =  i T + j,        j = x + i + 1,      where j < T
                                 =  (i + 1) T + j,  j = x + i + 1 − T,  elsewhere

T is a tile's length, x a column of z. So a product of T columns is the part above the diagonal (j > i) of one tile, and
the part on and below it of the tile of the next T keys. For a block of queries each step to the next keys takes one new
product; for a block of keys, where each step has other queries, two, of which half the columns are kept.

Each program has SLOTS such pieces of its own. They are read as soon as they were written, so they stay in the cache.
All threads of a program meet once a step, between writing a piece and reading it; what they write before they meet
again goes to a piece that is not being read.
"""

import triton
import triton.language as tl

from headwise.attention.triton.tiles import block

SLOTS = tl.constexpr(3)  # two that are read, and one that is written meanwhile


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
def halves(below, above, in_n, in_m, OPT: tl.constexpr):
    """A tile, queries down or across, as it is on and below the diagonal, and as it is above it, from a piece each."""
    at = in_n * OPT.block_m + in_m
    return tl.load(below + at + OPT.block_m), tl.load(above + at)


@triton.jit
def whole(below, above, in_n, in_m):
    return tl.where(in_m > in_n, above, below).to(tl.float32)


@triton.jit
def meet(step, OPT: tl.constexpr):
    """Wait until all threads of the program are here: what each has written, all can read.

    Triton does not pipeline loops with a barrier that it knows of, hence one that it does not.
    """
    if OPT.fast:
        barrier: tl.constexpr = "bar.sync 0; mov.u32 $0, $1;"
        tl.inline_asm_elementwise(barrier, "=r,r,~{memory}", [step], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.debug_barrier()


@triton.jit
def put_keys(skew, step, OPT: tl.constexpr):
    """For a block of queries: the product that the step to a block of keys needs."""
    q, table, stride, first, length, pieces = skew
    put(slot(pieces, step, OPT), product(q, table, stride, first + step * OPT.block_m, length, OPT), OPT)


@triton.jit
def begin_keys(skew, OPT: tl.constexpr):
    """For a block of queries, before the first of all keys."""
    put_keys(skew, -1, OPT)
    put_keys(skew, 0, OPT)


@triton.jit
def next_keys(skew, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of queries: the tile with a block of keys, for one block after the other.

    A product is stored a step before it is read, so that nobody waits for it.
    """
    pieces = skew[5]
    meet(step, OPT)
    below, above = halves(slot(pieces, step - 1, OPT), slot(pieces, step, OPT), in_n, in_m, OPT)
    put_keys(skew, step + 1, OPT)
    return whole(below, above, in_n, in_m)


@triton.jit
def put_queries(skew, step, OPT: tl.constexpr):
    """For a block of keys: the two products that a block of queries needs, as one."""
    q_ptr, q_n, n, table, stride, first, length, pieces = skew
    rows = step * OPT.block_n + tl.arange(0, OPT.block_n)
    q = block(q_ptr, q_n, rows, tl.arange(0, OPT.block_e), n, OPT.width, OPT.block_e)
    first -= step * OPT.block_n
    below = product(q, table, stride, first - OPT.block_m, length, OPT)
    above = product(q, table, stride, first, length, OPT)
    i, x = tl.arange(0, OPT.block_n)[:, None], tl.arange(0, OPT.block_m)[None, :]
    put(slot(pieces, step, OPT), tl.where(x + i + 1 < OPT.block_m, above, below), OPT)


@triton.jit
def begin_queries(skew, step, OPT: tl.constexpr):
    """For a block of keys, before the first step of a loop over queries."""
    meet(step, OPT)


@triton.jit
def next_queries(skew, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of keys: the tile with a block of queries, for one block after the other.

    Products are stored in the step that reads them: a step before would take registers that there are not.
    """
    put_queries(skew, step, OPT)
    meet(step, OPT)
    piece = slot(skew[7], step, OPT)
    below, above = halves(piece, piece, in_n, in_m, OPT)
    return whole(below, above, in_n, in_m)
