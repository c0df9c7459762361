"""Tables with a row for every relative position (Transformer-XL), put askew tile by tile.

The table's part of a score, (q_i + v) · table[j − i + n − 1], is a matrix product, z, whose columns are relative
positions; the pairs of one relative position lie on a diagonal of a tile. Of T columns of z, for a tile of T × T pairs,
column x of row i belongs to key

    j = x + i + 1        of one block of keys, above its diagonal, where that is below T
    j = x + i + 1 − T    of the next block of keys, on or below its diagonal, elsewhere

For a block of queries each step to the next keys takes one new product; for a block of keys, where each step has other
queries, two, of which half the columns are kept.

Nothing in Triton shifts rows fast: with `tl.gather` a call took several times as long (docs/design.md). On NVIDIA's
GPUs products go through shared memory instead, written as they are and read askew, by a few lines of assembly. Nothing
is assumed of how a tile lies in registers: each thread writes and reads the places of its own elements.
"""

import triton
import triton.language as tl

#: For two products of 64 × 64 numbers in half precision, or 32 × 32 in single, with some space between rows. A
#: multiple of 1024 bytes, so that Triton's own shared memory, which comes after it, lies as its products want it.
RESERVE = tl.constexpr("{ .shared .align 1024 .b8 askew[18432]; mov.u32 $0, askew; }")
MEET = tl.constexpr("bar.sync 0; mov.u32 $0, 0;")
STORE = tl.constexpr("st.shared.b32 [$1], $2; mov.u32 $0, 0;")
STORE_PAIR = tl.constexpr("st.shared.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;")
LOAD, LOAD_HALF = tl.constexpr("ld.shared.b32 $0, [$1];"), tl.constexpr("ld.shared.u16 $0, [$1];")
BF16_PAIR, FP16_PAIR = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;"), tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@triton.jit
def reserved(OPT: tl.constexpr):
    """Where a program's shared memory for products lies."""
    place = 0
    if OPT.fast:
        place = tl.inline_asm_elementwise(RESERVE, "=r,r,~{memory}", [0], dtype=tl.int32, is_pure=False, pack=1)
    return place


@triton.jit
def meet():
    """Wait until all threads of the program are here: what each has written, all can read. Returns 0.

    Triton does not pipeline loops with a barrier that it knows of, hence one that it does not. Addresses that contain
    the 0 are computed after it, not once before the loop, which would take registers.
    """
    return tl.inline_asm_elementwise(MEET, "=r,r,~{memory}", [0], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def rounded(z, DTYPE: tl.constexpr, OPT: tl.constexpr):
    """A product in another precision; for shared memory, half precision is two neighbours in a row in 32 bits."""
    if not OPT.fast or DTYPE == tl.float32:
        numbers = z.to(DTYPE)
    else:
        pair: tl.constexpr = BF16_PAIR if DTYPE == tl.bfloat16 else FP16_PAIR
        first, second = neighbours(z)
        numbers = tl.inline_asm_elementwise(pair, "=r,r,r", [first, second], dtype=tl.int32, is_pure=True, pack=1)
    return numbers


@triton.jit
def neighbours(z):
    return tl.split(tl.reshape(z, (z.shape[0], z.shape[1] // 2, 2)))


@triton.jit
def write(at, numbers):
    """Store pairs of neighbours at these places."""
    if numbers.dtype == tl.float32:
        first, second = neighbours(numbers)
        both = [at, first, second]
        tl.inline_asm_elementwise(STORE_PAIR, "=r,r,r,r,~{memory}", both, dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(STORE, "=r,r,r,~{memory}", [at, numbers], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def read(at, DTYPE: tl.constexpr):
    """Single numbers, as float32."""
    load: tl.constexpr = LOAD if DTYPE == tl.float32 else LOAD_HALF
    bits = tl.inline_asm_elementwise(load, "=r,r,~{memory}", [at], dtype=tl.int32, is_pure=False, pack=1)
    if DTYPE == tl.float16:
        numbers = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        numbers = (bits << 16 if DTYPE == tl.bfloat16 else bits).to(tl.float32, bitcast=True)
    return numbers


@triton.jit
def biased(q, biases_ptr, h, H, OPT: tl.constexpr):
    """A block of queries as they meet keys, q + u, and as they meet the table, q + v."""
    e = tl.arange(0, OPT.block_e)
    at, there = biases_ptr + h * OPT.width + e, e < OPT.width
    u = tl.load(at, mask=there, other=0.0)
    v = tl.load(at + H * OPT.width, mask=there, other=0.0)
    whole = q.to(tl.float32)
    return (whole + u[None, :]).to(q.dtype), (whole + v[None, :]).to(q.dtype)


@triton.jit
def rows_of(table, stride, first, OPT: tl.constexpr):
    """T rows of a table from `first` on, which is never more than T outside of it."""
    c, e = first + tl.arange(0, OPT.block_m), tl.arange(0, OPT.block_e)
    at = table + c[:, None] * stride + e[None, :]
    if OPT.width == OPT.block_e:
        return tl.load(at)
    return tl.load(at, mask=e[None, :] < OPT.width, other=0.0)


@triton.jit
def product(skew, step, OPT: tl.constexpr):
    """For a block of queries: the product that the step to a block of keys needs."""
    q, table, stride, first, memory = skew
    rows = rows_of(table, stride, first + step * OPT.block_m, OPT)
    return rounded(tl.dot(q, tl.trans(rows), input_precision=OPT.precision), q.dtype, OPT)


@triton.jit
def first_product(skew, number, OPT: tl.constexpr):
    """For a block of queries, of any number, what the first step takes as `below`.

    In a loop, after which the shared memory that it took is free, and whose bounds the compiler cannot know.
    """
    T: tl.constexpr = OPT.block_n
    DTYPE: tl.constexpr = skew[0].dtype
    if OPT.fast and DTYPE != tl.float32:
        below = tl.zeros([T, T // 2], tl.int32)
    else:
        below = tl.zeros([T, T], DTYPE)
    for step in tl.range(number - 1, number, num_stages=1):
        below = product(skew, step - number, OPT)
    return below


@triton.jit
def next_keys(skew, below, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of queries: the tile with a block of keys, and what the next step takes as `below`."""
    T: tl.constexpr = OPT.block_n
    memory = skew[4]
    above = product(skew, step, OPT)
    if OPT.fast:
        DTYPE: tl.constexpr = skew[0].dtype
        BYTES: tl.constexpr = DTYPE.primitive_bitwidth // 8
        PITCH: tl.constexpr = (2 * T + 8) * BYTES  # which spreads a warp's accesses over memory's banks
        at = memory + meet() + tl.arange(0, T)[:, None] * PITCH + tl.arange(0, T // 2)[None, :] * (2 * BYTES)
        write(at, below)
        write(at + T * BYTES, above)
        tile = read(memory + meet() + (T - 1) * BYTES + in_n * (PITCH - BYTES) + in_m * BYTES, DTYPE)
    else:
        z = tl.where(in_m + in_n + 1 < T, above, below)
        tile = tl.gather(z, (in_m - in_n - 1) & (T - 1), 1).to(tl.float32)
    return tile, above


@triton.jit
def next_queries(skew, q, step, in_n, in_m, OPT: tl.constexpr):
    """For a block of keys: the tile with a block of queries, which are across; what v adds is among the terms."""
    table, stride, terms, first, memory = skew
    T: tl.constexpr = OPT.block_n
    q = tl.trans(q)
    first -= step * T
    below = tl.dot(rows_of(table, stride, first - T, OPT), q, input_precision=OPT.precision)
    above = tl.dot(rows_of(table, stride, first, OPT), q, input_precision=OPT.precision)
    terms += first + tl.arange(0, T)
    below += tl.load(terms - T)[:, None]
    above += tl.load(terms)[:, None]
    if OPT.fast:
        BYTES: tl.constexpr = q.dtype.primitive_bitwidth // 8
        PITCH: tl.constexpr = (T + 8) * BYTES
        at = memory + meet() + tl.arange(0, T)[:, None] * PITCH + tl.arange(0, T // 2)[None, :] * (2 * BYTES)
        write(at, rounded(below, q.dtype, OPT))
        write(at + T * PITCH, rounded(above, q.dtype, OPT))
        tile = read(memory + meet() + (T - 1) * PITCH + in_m * PITCH - in_n * (PITCH - BYTES), q.dtype)
    else:
        z = tl.where(in_m + in_n + 1 < T, above, below).to(q.dtype)
        tile = tl.gather(z, (in_m - in_n - 1) & (T - 1), 0).to(tl.float32)
    return tile
