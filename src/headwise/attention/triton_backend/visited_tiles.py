"""Lists of the tiles in which a dense mask allows any pair. The kernels visit no others.

Legend: B batch, H heads, N queries, M keys.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.triton_backend.launch import Tile
from headwise.attention.triton_backend.plan import Plan


class VisitedTiles:
    """The tiles with an unmasked pair, for each division of a mask into tiles that a call needs."""

    def __init__(self, plan: Plan, tensors: dict[str, Any]) -> None:
        self.plan, self.tensors = plan, tensors
        self.cache: dict[Any, Tensor] = {}

    def set(self, tile_name: str, *, per_key: bool = False) -> None:
        """Set the kernels' argument for the kernel with this tile."""
        if self.plan.mask is None:
            return
        tile = self.plan.tile(tile_name)
        if not self.plan.skips_tiles(tile):
            return
        key = (tile.block_n, tile.block_m, per_key)
        if key not in self.cache:
            mask = self.tensors["mask_ptr"]
            mask = mask.expand(*mask.shape[:2], self.plan.n, self.plan.m)
            self.cache[key] = visited_tiles(mask, tile, per_key=per_key)
        self.tensors["visited_ptr"] = self.cache[key]


def visited_tiles(mask: Tensor, tile: Tile, *, per_key: bool) -> Tensor:
    """Return the tiles of a mask, (B or 1, H or 1, N, M), in which any pair is allowed.

    Args:
        mask: 1 where attention is allowed.
        tile: the tile size.
        per_key: whether to list the query blocks of each key block, not the key blocks of each query block.

    Returns:
        (B or 1, H or 1, blocks, 2 · tiles + 1). Of each block's row, element i ≤ tiles is the number of visited tiles
        before tile i, and the rest are the tiles, the visited ones first, in ascending order.
    """
    batch, heads, n, m = mask.shape
    query_blocks, key_blocks = -(-n // tile.block_n), -(-m // tile.block_m)
    padding = (0, key_blocks * tile.block_m - m, 0, query_blocks * tile.block_n - n)
    blocks = pad(mask, padding).view(batch, heads, query_blocks, tile.block_n, key_blocks, tile.block_m)
    is_visited = blocks.amax((3, 5)) > 0
    if per_key:
        is_visited = is_visited.mT
    counts = pad(is_visited.cumsum(-1), (1, 0))
    order = (~is_visited).to(torch.uint8).argsort(dim=-1, stable=True)
    return torch.cat([counts, order], dim=-1).int()


def visited_dz_tiles(
    plan: Plan, visited: Tensor | None, dz: Tensor, chunk_start: int, first_column: int
) -> dict[str, Tensor]:
    """Return the tiles of dz, [H, B, chunk, width], with an allowed pair, as arguments of bwd_dense_table_kernel.

    Args:
        plan: the plan.
        visited: the tiles of the mask, of the kernel that stores dz.
        dz: the gradient of the products with the table, of a chunk of queries or keys (`transformer_xl.py`).
        chunk_start: the first query or key of the chunk.
        first_column: the column of z which is the first one of dz, a multiple of the tile size.
    """
    tile = plan.tile("dense_table")
    if visited is None or not plan.skips_tiles(tile):
        return {}
    heads, batch, chunk_size, width = dz.shape
    tile_size, tiles = tile.block_n, visited.shape[3] // 2  # the tiles of all kernels have as many queries
    is_visited = pad(visited[..., : tiles + 1].diff().bool(), (1, 1))
    rows = torch.arange(chunk_size, device=dz.device)
    # Key 0 of a row is in column chunk_size − 1 − row, so each tile of columns has keys of two tiles.
    first_tile = (chunk_size - 1 - rows) // tile_size
    column_tile = first_column // tile_size + torch.arange(width // tile_size, device=dz.device)
    key_tile = column_tile - first_tile[:, None]
    row_tiles = is_visited[:, :, (chunk_start + rows) // tile_size].expand(batch, heads, -1, -1)
    has_pair = torch.zeros(batch, heads, *key_tile.shape, dtype=torch.bool, device=dz.device)
    for index in (key_tile + 1, key_tile):
        has_pair |= row_tiles.gather(3, index.clamp(0, tiles + 1).expand_as(has_pair))
    columns_per_block = tile.block_m // tile_size
    has_pair_by_row = has_pair.transpose(0, 1).reshape(1, heads, batch * chunk_size, -1)
    return {
        "visited_columns_ptr": visited_tiles(has_pair, Tile(tile_size, 1), per_key=False),
        "visited_rows_ptr": visited_tiles(has_pair_by_row, Tile(tile_size, columns_per_block), per_key=True),
    }
