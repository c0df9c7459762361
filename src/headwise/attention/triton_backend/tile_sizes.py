"""Tile sizes of the kernels."""

from headwise.attention.triton_backend.launch import Tile


def fastest_tile(
    name: str,
    *,
    width: int,
    is_float32: bool,
    is_single_tile: bool,
    has_dense_table: bool,
    has_position_product: bool,
    has_position_terms: bool,
    has_relative_bias: bool,
    has_clipped_table: bool,
    is_short: bool,
    has_pair_inputs: bool,
    has_dropout: bool,
    want_received: bool,
) -> Tile:
    """Return the tile of a kernel that was fastest on an H200 (docs/design.md).

    Args:
        name: the kernel: "fwd", "dq", "dkv", "dbias", "received" (forward and backward), or "dense_table".
        width: the larger one of the widths of queries and values, rounded up.
        is_float32: whether inputs are float32, not half precision.
        is_single_tile: whether a tile of 64 × 64 pairs holds all queries and keys.
        has_dense_table: whether there is a dense table of relative positions.
        has_position_product: whether products of position_q and position_k are added.
        has_position_terms: whether there are distance coefficients or clipped tables.
        has_relative_bias: whether there is a relative bias, whose gradient needs square tiles.
        has_clipped_table: whether there is a clipped table of keys, values or biases.
        is_short: whether there are few queries and keys (`Plan.is_short`).
        has_pair_inputs: whether there is a dense mask or a position bias, which take shared memory in each stage.
        has_dropout: whether weights are dropped.
        want_received: whether received attention is requested.
    """
    if is_float32 or width > 128:
        return Tile(32, 32, 4 if not has_dense_table or name == "dense_table" else 8)
    is_wide = width > 64
    if name == "dense_table":
        return Tile(64, 64 if is_wide else 128, 4, 4)
    if is_single_tile:
        return Tile(64, 64)
    if has_dense_table:  # the relative shift needs square tiles
        return {
            "fwd": Tile(64, 64, 4, 2 if is_wide and has_pair_inputs else 3),
            "dkv": Tile(64, 64, 4, 2),
            "dq": Tile(64, 64, 4, 2 if has_pair_inputs else 3),
            "received": Tile(64, 64, 4, 2),
        }[name]
    if has_position_product and name in ("fwd", "dq", "dkv"):
        if is_wide and name == "dkv":  # with 64 queries, registers are spilled
            return Tile(32, 64, 4, 2)
        if has_dropout or has_pair_inputs:
            return Tile(64, 64, 4, 2)
        return {
            "fwd": Tile(128, 64, 8, 3),
            "dkv": Tile(64, 64, 4, 3),
            "dq": Tile(64, 64, 4, 3 if is_wide else 2),
        }[name]
    is_plain = not has_position_terms
    if is_wide:
        is_small = has_position_terms and not has_relative_bias  # with 64 queries, registers are spilled
        return {
            "fwd": Tile(64, 64, 4, 2 if has_clipped_table else 3),
            "dkv": Tile(32, 64, 4, 3) if is_small else Tile(64, 64, 4, 2),
            "dq": Tile(64, 64, 4, 2),
            "received": Tile(64, 64, 4, 3),
        }.get(name, Tile(64, 64, 4, 1))
    if is_short and has_position_terms and not has_relative_bias:
        if name == "dkv":
            return Tile(64, 64, 4, 2)
        if has_clipped_table and name in ("fwd", "dq"):  # with 64 keys, registers are spilled
            return Tile(64, 32, 4, 3)
    return {
        "fwd": Tile(128, 64, 8, 3) if is_plain else Tile(64, 64, 4, 3),
        "dkv": Tile(64, 64, 4, 2 if has_dropout else 3),
        "dq": Tile(128, 64, 8, 3) if is_plain and not want_received else Tile(64, 64, 4, 3),
        "received": Tile(64, 64, 4, 3),
    }.get(name, Tile(64, 64, 4, 1))


def num_blocks(length: int, size: int) -> int:
    """Return the number of blocks of this size."""
    return -(-length // size)


def power_of_two(width: int) -> int:
    """Round up to a power of two, at least 32.

    On an H200, products with 16 columns read past the end of shared memory (Triton 3.6).
    """
    return max(32, 1 << (width - 1).bit_length())
