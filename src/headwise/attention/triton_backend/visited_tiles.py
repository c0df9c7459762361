"""Lists of the tiles in which a dense mask allows any pair. The kernels visit no others.

The layers of a model get the same mask and share its lists.

Legend: B batch, H heads, N queries, M keys.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.triton_backend.launch import Tile
from headwise.attention.triton_backend.plan import Plan
from headwise.attention.triton_backend.tensor_cache import get_cache


class VisitedTiles:
    """The tiles with an unmasked pair, for each division of a mask into tiles that a call needs.

    Args:
        plan: the plan.
        tensors: the kernels' tensors, by parameter name.
        mask: the boolean mask that these contain as bytes, or None to keep no lists for other calls.
    """

    def __init__(self, plan: Plan, tensors: dict[str, Any], mask: Tensor | None) -> None:
        self.plan, self.tensors = plan, tensors
        self.cache = get_cache(mask)

    def set(self, tile_name: str, *, per_key: bool = False) -> None:
        """Set the kernels' argument for the kernel with this tile."""
        if self.plan.mask is None:
            return
        tile = self.plan.tile(tile_name)
        if not self.plan.skips_tiles(tile):
            return
        key = (tile.block_n, tile.block_m, per_key, self.plan.n, self.plan.m)
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
        (B or 1, H or 1, blocks, 2 · tiles + 1), see `list_tiles`.
    """
    is_visited = reduce_tiles(mask, tile.block_n, tile.block_m) > 0
    return list_tiles(is_visited.mT if per_key else is_visited)


def reduce_tiles(x: Tensor, rows: int, columns: int) -> Tensor:
    """Return the maximum of each tile of the last two dimensions."""
    n, m = x.shape[-2:]
    padding = (0, -m % columns, 0, -n % rows)
    x = pad(x, padding) if any(padding) else x
    return x.view(*x.shape[:-2], -1, rows, x.shape[-1] // columns, columns).amax((-3, -1))


def list_tiles(is_visited: Tensor) -> Tensor:
    """Return lists of the visited tiles of each block.

    Args:
        is_visited: (..., blocks, tiles).

    Returns:
        (..., blocks, 2 · tiles + 1), integers. Of each block's row, element i ≤ tiles is the number of visited tiles
        before tile i. The visited tiles follow, in ascending order, and zeros.
    """
    tiles = is_visited.shape[-1]
    counts = is_visited.cumsum(-1)
    lists = torch.zeros(*is_visited.shape[:-1], 2 * tiles + 1, dtype=torch.int32, device=is_visited.device)
    index = torch.where(is_visited, counts + tiles, tiles)  # the number of all tiles replaces what is stored there
    lists.scatter_(-1, index, torch.arange(tiles, dtype=torch.int32, device=lists.device).expand_as(index))
    lists[..., 1 : tiles + 1] = counts
    return lists


class VisitedDzTiles:
    """The tiles of dz, [H, B, chunk, width], with an allowed pair, for bwd_dense_table_kernel.

    Args:
        plan: the plan.
        visited: the tiles of the mask, of the kernel that stores dz, or None.
        tile_size: the number of queries and of keys of that kernel's tiles.
        chunk_starts: the first query, or key, of each chunk.
    """

    def __init__(self, plan: Plan, visited: Tensor | None, tile_size: int, chunk_starts: range) -> None:
        self.chunk_starts = chunk_starts
        self.tile = plan.tile("dense_table")
        self.is_used = visited is not None and plan.skips_tiles(self.tile)
        if visited is None or not self.is_used:
            return
        self._cache = get_cache(visited)
        key = tile_size, self.tile.block_n
        if key not in self._cache:
            is_visited = visited[..., : visited.shape[3] // 2 + 1].diff() > 0
            if tile_size != self.tile.block_n:
                factor = self.tile.block_n // tile_size
                is_visited = reduce_tiles(is_visited.byte(), factor, factor) > 0
            self._cache[key] = pad(is_visited.cumsum(-1), (1, 0))
        self.counts = self._cache[key]  # of the visited tiles before each

    def arguments(self, dz: Tensor, chunk_start: int, first_column: int) -> dict[str, Tensor]:
        """Return the kernel's arguments for a chunk.

        Args:
            dz: the gradient of the products with the table, of the chunk (`transformer_xl.py`).
            chunk_start: the first query or key of the chunk.
            first_column: the column of z which is the first one of dz, a multiple of the tile size.
        """
        if not self.is_used:
            return {}
        if first_column or dz.shape[2] < self.chunk_starts.step:
            starts = range(chunk_start, chunk_start + 1)
        else:  # all chunks of this size are listed at once
            starts = self.chunk_starts
        key = starts, first_column, dz.shape, self.tile
        if key not in self._cache:
            self._cache[key] = self._list_chunks(starts, dz, first_column)
        columns, rows = self._cache[key]
        index = starts.index(chunk_start)
        return {"visited_columns_ptr": columns[index], "visited_rows_ptr": rows[index]}

    def _list_chunks(self, starts: range, dz: Tensor, first_column: int) -> tuple[Tensor, Tensor]:
        """Return the visited tiles of columns of each query block, and those of queries of each block of columns."""
        heads, batch, chunk_size, width = dz.shape
        size, tiles = self.tile.block_n, self.counts.shape[3] - 1
        # Key j of row i is in column j − i + chunk_size − 1 of z, so each tile of columns has keys of some tiles.
        first_rows = torch.arange(0, chunk_size, size, device=dz.device)
        last_rows = (first_rows + size - 1).clamp(max=chunk_size - 1)
        first_keys = first_column + torch.arange(0, width, size, device=dz.device) - (chunk_size - 1)
        before = (first_keys + first_rows[:, None]).div(size, rounding_mode="floor").clamp(0, tiles)
        end = ((first_keys + last_rows[:, None] + size - 1).div(size, rounding_mode="floor") + 1).clamp(0, tiles)
        chunk_starts = torch.arange(starts.start, starts.stop, starts.step, device=dz.device)
        blocks = ((chunk_starts[:, None] + first_rows) // size).clamp(max=self.counts.shape[2] - 1)
        counts = self.counts[:, :, blocks]  # [B or 1, H or 1, chunks, blocks, tiles + 1]
        shape = (*counts.shape[:4], width // size)
        has_pair = counts.gather(4, end.expand(shape)) > counts.gather(4, before.expand(shape))
        has_pair = has_pair.expand(batch, heads, *shape[2:]).permute(2, 0, 1, 3, 4)  # [chunks, B, H, blocks, columns]
        by_row = has_pair.transpose(1, 2)  # the queries of all batch elements, one after another
        if chunk_size % size:
            by_row = by_row.repeat_interleave(size, 3)[:, :, :, :chunk_size]
            by_row = reduce_tiles(by_row.flatten(2, 3).byte(), size, 1) > 0
        else:
            by_row = by_row.flatten(2, 3)
        by_row = reduce_tiles(by_row.byte(), 1, self.tile.block_m // size) > 0
        return list_tiles(has_pair), list_tiles(by_row.mT)
