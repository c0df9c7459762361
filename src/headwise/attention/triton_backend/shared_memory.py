"""Shared memory that kernels reserve for values which they store by one index and load by another.

Triton has no fast way to do that: with `tl.gather` a call took several times as long (docs/design.md). On NVIDIA GPUs a
few lines of inline assembly do it. They do not depend on the layout of a tile in registers: each thread stores and
loads its own elements. Elsewhere (not OPT.fast) nothing is reserved, and callers have another way.
"""

import triton
import triton.language as tl

#: Sizes are multiples of 1024 bytes: Triton's own shared memory follows, and its products need that alignment.
RESERVE_8K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[8192]; mov.u32 $0, headwise_smem; }")
RESERVE_16K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[16384]; mov.u32 $0, headwise_smem; }")
RESERVE_17K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[17408]; mov.u32 $0, headwise_smem; }")
RESERVE_18K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[18432]; mov.u32 $0, headwise_smem; }")
RESERVE_21K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[21504]; mov.u32 $0, headwise_smem; }")
RESERVE_35K = tl.constexpr("{ .shared .align 1024 .b8 headwise_smem[35840]; mov.u32 $0, headwise_smem; }")
BARRIER = tl.constexpr("bar.sync 0; mov.u32 $0, 0;")
STORE = tl.constexpr("st.shared.b32 [$1], $2; mov.u32 $0, 0;")
STORE_PAIR = tl.constexpr("st.shared.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;")
STORE_BELOW = tl.constexpr("{ .reg .pred p; setp.lt.u32 p, $3, $4; @p st.shared.b32 [$1], $2; mov.u32 $0, 0; }")
LOAD, LOAD_HALF = tl.constexpr("ld.shared.b32 $0, [$1];"), tl.constexpr("ld.shared.u16 $0, [$1];")
LOAD_EIGHT = tl.constexpr(
    "{ .reg .b32 a, b, c, d, e; ld.shared.b32 a, [$4]; ld.shared.b32 b, [$4+4]; ld.shared.b32 c, [$4+8]; "
    "ld.shared.b32 d, [$4+12]; ld.shared.b32 e, [$4+16]; shf.r.wrap.b32 $0, a, b, $5; shf.r.wrap.b32 $1, b, c, $5; "
    "shf.r.wrap.b32 $2, c, d, $5; shf.r.wrap.b32 $3, d, e, $5; }"
)
STORE_EIGHT = tl.constexpr("st.shared.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;")
STORE_GLOBAL = tl.constexpr("st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;")
PACK, UNPACK = tl.constexpr("mov.b32 $0, {$1, $2};"), tl.constexpr("mov.b32 {$0, $1}, $2;")
ZERO = tl.constexpr("mov.u32 $0, 0;")
BF16_PAIR, FP16_PAIR = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;"), tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@triton.jit
def reserve_smem(OPT: tl.constexpr, HAS_QUERIES: tl.constexpr = False):
    """Return the address of this program's reserved shared memory. HAS_QUERIES states that it holds a query block."""
    address = 0
    if OPT.fast:
        if OPT.relative_shift and HAS_QUERIES and not OPT.query_table:
            size: tl.constexpr = RESERVE_17K
        elif OPT.relative_shift:
            size: tl.constexpr = RESERVE_18K
        elif OPT.staged_distance:
            size: tl.constexpr = RESERVE_8K if OPT.num_staged <= 1024 else RESERVE_16K
        else:
            size: tl.constexpr = RESERVE_21K if OPT.table_columns <= 40 else RESERVE_35K
        address = tl.inline_asm_elementwise(size, "=r,r,~{memory}", [0], dtype=tl.int32, is_pure=False, pack=1)
    return address


@triton.jit
def barrier():
    """Synchronize the program's threads, so that each can load what the others have stored. Returns 0.

    Triton does not pipeline loops that contain its own barrier, so this one is hidden in assembly. Addresses to which
    the 0 is added are computed after the barrier, not once before the loop, which would cost registers.
    """
    return tl.inline_asm_elementwise(BARRIER, "=r,r,~{memory}", [0], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def round_product(z, DTYPE: tl.constexpr, OPT: tl.constexpr):
    """Round a product to DTYPE; for shared memory, half precision is packed as pairs of neighbors in 32 bits."""
    if not OPT.fast or DTYPE == tl.float32:
        rounded = z.to(DTYPE)
    else:
        convert: tl.constexpr = BF16_PAIR if DTYPE == tl.bfloat16 else FP16_PAIR
        even, odd = split_columns(z)
        rounded = tl.inline_asm_elementwise(convert, "=r,r,r", [even, odd], dtype=tl.int32, is_pure=True, pack=1)
    return rounded


@triton.jit
def split_columns(z):
    """Return the even and the odd columns."""
    return tl.split(tl.reshape(z, (z.shape[0], z.shape[1] // 2, 2)))


@triton.jit
def store_smem(address, rounded):
    """Store pairs of neighbors at these addresses."""
    if rounded.dtype == tl.float32:
        even, odd = split_columns(rounded)
        args = [address, even, odd]
        tl.inline_asm_elementwise(STORE_PAIR, "=r,r,r,r,~{memory}", args, dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.inline_asm_elementwise(STORE, "=r,r,r,~{memory}", [address, rounded], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def pack_pairs(x):
    """Pack neighbors of half precision in 32 bits."""
    even, odd = split_columns(x)
    return tl.inline_asm_elementwise(PACK, "=r,h,h", [even, odd], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def zero_like(x):
    """Return zeros in 32 bits, in the layout of x. The compiler does not know that they are 0."""
    return tl.inline_asm_elementwise(ZERO, "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def load_eight(address, shift):
    """Load eight elements of half precision from each address, as four words of 32 bits.

    They start at the address, a multiple of 4, if shift is 0, and 2 bytes after it if shift is 16.
    """
    return tl.inline_asm_elementwise(
        LOAD_EIGHT, "=&r,=&r,=&r,=&r,r,r,~{memory}", [address, shift],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def store_smem_eight(address, a, b, c, d):
    """Store four words of 32 bits at each address, a multiple of 16 bytes."""
    args = [address, a, b, c, d]
    tl.inline_asm_elementwise(STORE_EIGHT, "=r,r,r,r,r,r,~{memory}", args, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def store_eight(ptrs, a, b, c, d):
    """Store four words of 32 bits at each address of global memory, a multiple of 16 bytes."""
    args = [ptrs.to(tl.int64), a, b, c, d]
    tl.inline_asm_elementwise(STORE_GLOBAL, "=r,l,r,r,r,r,~{memory}", args, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def load_smem(address, DTYPE: tl.constexpr):
    """Load single elements as float32."""
    load: tl.constexpr = LOAD if DTYPE == tl.float32 else LOAD_HALF
    bits = tl.inline_asm_elementwise(load, "=r,r,~{memory}", [address], dtype=tl.int32, is_pure=False, pack=1)
    return bits_to_float(bits, DTYPE)


@triton.jit
def load_staged(address, DTYPE: tl.constexpr):
    """Load single elements as float32 from addresses that depend on the result of a barrier.

    The compiler is free to move such loads up to that barrier, or to leave them out.
    """
    load: tl.constexpr = LOAD if DTYPE == tl.float32 else LOAD_HALF
    bits = tl.inline_asm_elementwise(load, "=r,r", [address], dtype=tl.int32, is_pure=True, pack=1)
    return bits_to_float(bits, DTYPE)


@triton.jit
def bits_to_float(bits, DTYPE: tl.constexpr):
    """Convert the bits of elements, in 32-bit integers, to float32."""
    if DTYPE == tl.float16:
        x = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        x = (bits << 16 if DTYPE == tl.bfloat16 else bits).to(tl.float32, bitcast=True)
    return x


@triton.jit
def store_word(address, x):
    """Store single elements of 32 bits at these addresses."""
    tl.inline_asm_elementwise(STORE, "=r,r,r,~{memory}", [address, x], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def store_word_below(address, x, index, limit):
    """Store single elements of 32 bits at these addresses where 0 ≤ index < limit."""
    args = [address, x, index, limit]
    tl.inline_asm_elementwise(STORE_BELOW, "=r,r,r,r,r,~{memory}", args, dtype=tl.int32, is_pure=False, pack=1)
