"""What kernels keep in shared memory: distance factors (`tiles.py`) and products with tables (`staged_tables.py`)."""

from typing import TYPE_CHECKING, Any

from headwise.attention.triton_backend.layouts import padded_rows
from headwise.attention.triton_backend.tile_sizes import num_blocks, power_of_two

if TYPE_CHECKING:
    from headwise.attention.triton_backend.launch import Tile
    from headwise.attention.triton_backend.plan import Plan

#: Kernels that keep distance factors in shared memory.
DISTANCE_KERNELS = ("fwd_kernel", "bwd_dq_kernel", "bwd_dkv_kernel")

#: The options of kernels that keep nothing there.
NOTHING_STAGED: dict[str, Any] = {
    "staged_distance": False,
    "num_staged": 0,
    "staged_tables": False,
    "stores_products": False,
    "block_r": 0,
    "table_columns": 0,
    "product_pitch": 0,
    "pairs_pitch": 0,
}


def stages_tables(plan: "Plan", kernel: str, staged_tables: bool) -> bool:
    """Whether a kernel keeps products with tables in shared memory, if a call does.

    On long sequences few pairs are near, and shared memory for them costs bwd_dkv_kernel more than it saves.
    """
    return staged_tables and (kernel != "bwd_dkv_kernel" or plan.is_short)


def staging_options(plan: "Plan", kernel: str, tile: "Tile", staged_tables: bool) -> dict[str, Any]:
    """Return the options (`Options`) of a kernel on what it keeps in shared memory.

    Args:
        plan: the plan of the call.
        kernel: the kernel's name.
        tile: its tile.
        staged_tables: whether kernels of the call compute the products with clipped tables.
    """
    options = dict(NOTHING_STAGED)
    if kernel in DISTANCE_KERNELS and plan.can_stage_distance and plan.is_short:
        queries = num_blocks(plan.n, tile.block_n) * tile.block_n
        keys = num_blocks(plan.m, tile.block_m) * tile.block_m
        options["staged_distance"] = True
        options["num_staged"] = power_of_two(max(queries + tile.block_m, keys + tile.block_n))
    if stages_tables(plan, kernel, staged_tables):
        columns = padded_rows(plan.max_offset)
        options["staged_tables"] = True
        options["stores_products"] = not plan.is_short
        options["block_r"] = power_of_two(2 * plan.max_offset + 1)
        options["table_columns"] = columns
        # Pitches that distribute the rows of a warp over the banks.
        options["product_pitch"] = 2 * (columns if columns % 16 else columns + 8)
        options["pairs_pitch"] = 4 * (columns + 4)
    return options
