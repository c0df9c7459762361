"""Host code for dense tables (Transformer-XL, DeBERTa): products with the biases u and v, and gradients by chunks.

Queries are compared with keys as q + u, and with the table as q + v. A program for a query block adds the biases once
(`add_biases`). A program for a key block meets other queries in each step: it takes q without biases, and the products
u · k_j and v · table[r] are added to its scores. In half precision, the former rounds q + u and the latter does not.

The gradients of the table, and of the queries compared with it, are matrix products with dz, the gradient of
z[i, r] = (q_i + v) · table[r]. Read with rows one element shorter than they are, the memory of dz has an element for
each pair:

    dz[i, j − i + last] = memory[last + i · (width − 1) + j]

bwd_dq_kernel shifts the gradients of scores back and stores whole tiles of dz (`stores_dz_tiles`), or it stores the
gradient of each pair's score. bwd_dense_table_kernel then computes both products.

dz is computed for a chunk of queries at a time, so its memory does not grow with the length. With a window, dz has only
the columns of relative positions inside of it. A query table, which is multiplied with keys, is the table of the
transposed problem: bwd_dkv_kernel stores dz of a chunk of keys.
Legend: B batch, H heads, N queries, M keys, E width of queries and keys, R = N + M − 1 rows of the table.
"""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.triton_backend.launch import Launch, Options, Tile, kernels
from headwise.attention.triton_backend.layouts import named_strides, tensor_strides
from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
from headwise.attention.triton_backend.visited_tiles import VisitedDzTiles

#: The programs of a chunk should fill a GPU several times, with a dz that its cache can hold or that is small beside
#: the other tensors (64 MiB in half precision). Longer sequences have more pairs: they fill the GPU once.
CHUNK_PROGRAMS, USUAL_CHUNK_PAIRS = 512, 2**25
#: Pairs in a chunk, unless that is less than 64 queries: 256 MiB in half precision. A chunk has no more queries than
#: there are keys, so dz has at most twice as many elements.
MAX_CHUNK_PAIRS = 2**27
#: The rows of dz are a multiple of this long: whole tiles, aligned for matrix products.
DZ_WIDTH_MULTIPLE = 128
#: A tile that a window cuts has relative positions up to this far outside of it: two tiles of 64.
WINDOW_MARGIN = 128


#: Options that the kernels of this file read. The others are neutral, so that fewer variants are compiled.
TABLE_OPTIONS = ("width", "block_e", "block_n", "block_m", "window", "skip_tiles", "precision")
NEUTRAL_OPTIONS: dict[str, Any] = {
    **{field.name: False for field in fields(Options) if field.name not in TABLE_OPTIONS},
    "store_d_scores": "",
}


def table_options(plan: Plan, tile: Tile) -> Options:
    """Return the compile-time options of kernels that multiply with dense tables."""
    return replace(plan.options(tile), **NEUTRAL_OPTIONS)


def pad_table(table: Tensor) -> Tensor:
    """Add zeros before and after the rows of a dense table [H, R, E], which kernels read."""
    return pad(table, (0, 0, TABLE_PADDING, TABLE_PADDING))


def add_bias_products(plan: Plan, tensors: dict[str, Tensor | None]) -> None:
    """Compute u · k_j and v · table[r], and add them to the kernels' tensors."""
    bias_uv: Any = tensors["bias_uv_ptr"]
    u_dot_k = bias_uv.new_empty(plan.batch, plan.heads, plan.m)
    v_dot_table = bias_uv.new_zeros(plan.heads, plan.table_rows + 2 * TABLE_PADDING)[:, TABLE_PADDING:]
    run = plan.launches(bias_launches)
    run["u_dot_k"]({**tensors, "x_ptr": tensors["k_ptr"], "bias_uv_ptr": bias_uv[0], "products_ptr": u_dot_k})
    run["v_dot_table"](
        {**tensors, "x_ptr": tensors["dense_table_ptr"], "bias_uv_ptr": bias_uv[1], "products_ptr": v_dot_table}
    )
    tensors.update(u_dot_k_ptr=u_dot_k, v_dot_table_ptr=v_dot_table)


def bias_launches(plan: Plan) -> dict[str, Launch]:
    tile, m, rows = plan.tile("dense_table"), plan.m, plan.table_rows
    common: dict[str, Any] = {"H": plan.heads, "OPT": table_options(plan, tile)}
    key_arguments = {
        **tensor_strides("x", "bhn", plan.k),
        **named_strides("products", "bh", (plan.heads * m, m)),
        "GROUP": plan.heads // plan.groups,
        "num_rows": m,
    }
    table_arguments = {
        **named_strides("x", "bhn", (0, *plan.table_strides.values())),
        **named_strides("products", "bh", (0, rows + 2 * TABLE_PADDING)),
        "GROUP": 1,
        "num_rows": rows,
    }
    kernel = kernels()["bias_dot_kernel"]
    key_grid = (-(-m // tile.block_n), plan.heads, plan.batch)
    table_grid = (-(-rows // tile.block_n), plan.heads, 1)
    return {
        "u_dot_k": Launch(kernel, key_grid, tile, {**common, **key_arguments}),
        "v_dot_table": Launch(kernel, table_grid, tile, {**common, **table_arguments}),
    }


def compute_gradients(
    plan: Plan, tensors: dict[str, Any], d_table: Tensor | None, d_bias: Tensor | None, has_d_lse: bool
) -> Tensor:
    """Run bwd_dq_kernel and bwd_dense_table_kernel for each chunk of queries.

    Fills the gradients of the queries, and of the table and the scores' bias if they are given.

    Returns:
        The gradients of u and v, [2, H, E].
    """
    batch, heads, n, m = plan.batch, plan.heads, plan.n, plan.m
    window = (plan.window_left, 0 if plan.causal else plan.window_right) if plan.has_window else None
    is_narrow = has_narrow_dz(plan) and d_bias is None  # whose gradient is a sum over all pairs
    has_tiles = stores_dz_tiles(plan) and d_bias is None  # whose gradient is a sum over pairs
    max_size = max_chunk_size(plan, m, window if is_narrow else None)
    table: Tensor = tensors["dense_table_ptr"]
    table_shape = (heads, plan.table_rows + 2 * TABLE_PADDING, plan.width)
    d_table_fp32 = table.new_zeros(table_shape if d_table is not None else (1, 1, 1), dtype=torch.float32)
    num_blocks = [-(-n // plan.tile(kernel).block_n) for kernel in ("dq", "dense_table")]
    partials = [d_table_fp32.new_empty(batch, heads, blocks, plan.width) for blocks in num_blocks]
    tensors = {
        **tensors,
        "d_table_ptr": d_table_fp32[:, TABLE_PADDING:],
        "d_bias_u_partials_ptr": partials[0],
        "d_bias_v_partials_ptr": partials[1],
    }
    visited = VisitedDzTiles(plan, tensors.get("visited_ptr"), plan.tile("dq").block_n, range(0, n, max_size))
    chunk = None
    for chunk_start in range(0, n, max_size):
        chunk_size = min(max_size, n - chunk_start)
        num_rows = whole_blocks(plan, chunk_size) if has_tiles else chunk_size
        if chunk is None or window is not None or chunk.dz.shape[2] != num_rows:
            first_position = chunk_start + plan.q_offset
            chunk = new_dz(plan, table, first_position, num_rows, m, window, is_narrow=is_narrow)
            relative_q = table.new_empty(heads, batch, num_rows, plan.width).transpose(0, 1)  # in the order of dz
            tensors["relative_q_ptr"] = relative_q
        elif plan.seq_starts is not None or plan.mask is not None:
            chunk.dz.zero_()  # a chunk does not have the pairs of the previous one
        tensors |= {"dz_ptr": chunk.dz, "d_scores_ptr": chunk.d_scores}
        tensors |= visited.arguments(chunk.dz, chunk_start, chunk.first_column)
        run = plan.launches(
            chunk_launches, *chunk, d_table_fp32, relative_q, tensors["do_ptr"], chunk_start, has_d_lse,
            d_table is not None, has_tiles,
        )  # fmt: skip
        if d_bias is not None:  # added to the scores after the cap
            run["dq_after_softcap"](tensors)
            rows = d_bias[:, :, chunk_start : chunk_start + chunk_size] if d_bias.shape[2] > 1 else d_bias
            rows += chunk.d_scores.sum_to_size(rows.shape)
        if d_bias is None or plan.softcap:
            run["dq"](tensors)
        run["dense_table"](tensors)
    if d_table is not None:
        torch.mul(d_table_fp32, plan.scale, out=d_table)
    return torch.stack([partial.sum((0, 2)) for partial in partials])


def compute_key_gradients(
    plan: Plan, tensors: dict[str, Any], d_table: Tensor | None, has_d_lse: bool, needs: frozenset[str]
) -> None:
    """Run bwd_dkv_kernel and bwd_dense_table_kernel for each chunk of keys, if there is a query table.

    It is the table of the transposed problem, in which queries and keys are exchanged. Fills the gradients of the keys
    and values, and of the query table if it is given.
    """
    batch, heads, n, m = plan.batch, plan.heads, plan.n, plan.m
    window = (0 if plan.causal else plan.window_right, plan.window_left) if plan.has_window else None
    is_narrow = has_narrow_dz(plan)
    max_size = max_chunk_size(plan, n, window if is_narrow else None)
    k: Tensor = tensors["k_ptr"]
    table_shape = (heads, plan.table_rows + 2 * TABLE_PADDING, plan.width)
    d_table_fp32 = k.new_zeros(table_shape if d_table is not None else (1, 1, 1), dtype=torch.float32)
    blocks = -(-m // plan.tile("dense_table").block_n)
    table_tensors = {
        **tensors,
        "dense_table_ptr": tensors["query_table_ptr"],
        "dq_ptr": tensors["dk_ptr"],
        "d_table_ptr": d_table_fp32[:, TABLE_PADDING:],
        "d_bias_v_partials_ptr": d_table_fp32.new_empty(batch, heads, blocks, plan.width),  # not used: there is no bias
    }
    first, end = visible_keys(plan)
    if first > 0 or end < m:
        for d_keys in (tensors["dk_ptr"], tensors["dv_ptr"]):
            if d_keys is not None:
                d_keys.zero_()
    visited = VisitedDzTiles(plan, tensors.get("visited_ptr"), plan.tile("dkv").block_n, range(first, end, max_size))
    for chunk_start in range(first, end, max_size):
        chunk_size = min(max_size, end - chunk_start)
        first_position = chunk_start - plan.q_offset
        chunk = new_dz(plan, k, first_position, chunk_size, n, window, is_narrow=is_narrow)
        chunk_k = k[:, :, chunk_start : chunk_start + chunk_size]
        run = plan.launches(
            key_chunk_launches, *chunk, d_table_fp32, chunk_k, tensors["do_ptr"], chunk_start, has_d_lse, needs,
            d_table is not None,
        )  # fmt: skip
        run["dkv"]({**tensors, "d_scores_ptr": chunk.d_scores})
        table_tensors |= visited.arguments(chunk.dz, chunk_start, chunk.first_column)
        run["dense_table"]({**table_tensors, "dz_ptr": chunk.dz, "relative_q_ptr": chunk_k})
    if d_table is not None:
        torch.mul(d_table_fp32, plan.scale, out=d_table)


def stores_dz_tiles(plan: Plan) -> bool:
    """Return whether bwd_dq_kernel can store whole tiles of dz. It has them one step late, so it must not skip any."""
    return plan.mask is None


def whole_blocks(plan: Plan, chunk_size: int) -> int:
    """Return the number of queries in the blocks of bwd_dq_kernel that have these."""
    block_n = plan.tile("dq").block_n
    return -(-chunk_size // block_n) * block_n


def max_chunk_size(plan: Plan, m: int, window: tuple[int, int] | None = None) -> int:
    """Return the number of queries in a chunk, given the number of keys and the window."""
    heads = plan.batch * plan.heads
    columns = m if window is None else min(m, window_width(window))
    programs_at_once = 256 if plan.width <= 64 else 128  # of an H200
    enough, least = (-(-programs // heads) * 64 for programs in (CHUNK_PROGRAMS, programs_at_once))
    size = min(max(min(enough, USUAL_CHUNK_PAIRS // (heads * columns)), least), MAX_CHUNK_PAIRS // (heads * columns))
    return int(max(min(size // 64, -(-m // 64)), 1) * 64)


def window_width(window: tuple[int, int]) -> int:
    """Return the number of columns of dz that a window needs, wherever it starts between two multiples."""
    return round_up(window[0] + window[1] + 1 + 2 * WINDOW_MARGIN + DZ_WIDTH_MULTIPLE)


def round_up(length: int) -> int:
    return -(-length // DZ_WIDTH_MULTIPLE) * DZ_WIDTH_MULTIPLE


def dz_shape(plan: Plan, chunk_size: int, m: int) -> tuple[int, ...]:
    """Return the shape of dz of a chunk of queries with M keys."""
    return plan.heads, plan.batch, chunk_size, round_up(chunk_size + m)


def is_zeroed_whole(chunk_size: int, m: int) -> bool:
    """Return whether all of dz is zeroed: zeros in a part of each row take longer if the part is large."""
    return 4 * chunk_size > m


class Chunk(NamedTuple):
    """The memory of dz of a chunk."""

    dz: Tensor  # [H, B, chunk, width]
    d_scores: Tensor  # [B, H, chunk, M], the same memory with an element for each pair; M = 1 with a window
    first_column: int  # of z, which is column 0 of dz
    columns: tuple[int, int]  # the range of columns of dz that have pairs, in whole tiles


def new_dz(
    plan: Plan,
    like: Tensor,
    first_position: int,
    chunk_size: int,
    m: int,
    window: tuple[int, int] | None,
    *,
    is_narrow: bool,
) -> Chunk:
    """Allocate dz of a chunk, in which elements that the kernels do not store are 0.

    Args:
        plan: the plan.
        like: a tensor with the dtype and device of dz.
        first_position: position of the chunk's first query.
        chunk_size: number of rows.
        m: number of keys.
        window: the numbers of positions before and after a query that it sees, or None.
        is_narrow: whether dz has only the columns of the window.
    """
    shape = dz_shape(plan, chunk_size, m)
    if window is not None and is_narrow:
        return _new_narrow_dz(shape, like, first_position, window)
    has_all_pairs = not (plan.causal or plan.has_window or plan.mask is not None or plan.seq_starts is not None)
    if not has_all_pairs or is_zeroed_whole(chunk_size, m):
        dz = like.new_zeros(shape)
    else:
        dz = like.new_empty(shape)
        dz[..., :chunk_size].zero_()
        dz[..., m:].zero_()
    return Chunk(dz, view_by_pair(dz, m), 0, visited_columns(window, first_position, chunk_size, shape[3]))


def has_narrow_dz(plan: Plan) -> bool:
    """Return whether dz has only the columns of the window. Those of packed sequences differ by sequence."""
    return plan.has_window and plan.seq_starts is None


def _new_narrow_dz(shape: tuple[int, ...], like: Tensor, first_position: int, window: tuple[int, int]) -> Chunk:
    """Allocate dz with the columns of a window. All pairs of the tiles that kernels visit have one."""
    heads, batch, chunk_size, full_width = shape
    last = chunk_size - 1
    width = min(window_width(window), full_width)
    zero = first_position + last  # the column of z that has relative position 0
    first_column = max(zero - window[0] - WINDOW_MARGIN, 0) // DZ_WIDTH_MULTIPLE * DZ_WIDTH_MULTIPLE
    # Pair (0, 0) can lie before dz. No kernel stores it, but addresses are computed from there.
    space = round_up(max(first_column - last, 0))
    memory = like.new_zeros(space + heads * batch * chunk_size * width)
    dz = memory[space:].view(heads, batch, chunk_size, width)
    stride_h, stride_b, _, _ = dz.stride()
    d_scores = memory.as_strided(
        (batch, heads, chunk_size, 1), (stride_b, stride_h, width - 1, 1), space + last - first_column
    )
    return Chunk(dz, d_scores, first_column, (0, width))


def visible_keys(plan: Plan) -> tuple[int, int]:
    """Return the range of keys that some query sees through the window or the causal mask, in whole tiles."""
    tile_size = plan.tile("dkv").block_m
    first = max(plan.q_offset - plan.window_left, 0) // tile_size * tile_size
    end = plan.q_offset + plan.n + (0 if plan.causal else plan.window_right)
    return first, max(min(plan.m, -(-end // tile_size) * tile_size), first)


def visited_columns(
    window: tuple[int, int] | None, first_position: int, chunk_size: int, width: int
) -> tuple[int, int]:
    """Return the range of columns of dz that have pairs inside the window, in whole tiles.

    Args:
        window: the numbers of columns before and after the one of relative position 0 that have pairs.
        first_position: position of the chunk's first row.
        chunk_size: number of rows.
        width: number of columns.
    """
    if window is None:
        return 0, width
    zero = first_position + chunk_size - 1  # the column of relative position 0
    start = max(zero - window[0], 0) // DZ_WIDTH_MULTIPLE * DZ_WIDTH_MULTIPLE
    end = round_up(zero + window[1] + 1)
    return min(start, width), max(min(end, width), 0)


def view_by_pair(dz: Tensor, m: int) -> Tensor:
    """Return a view [B, H, chunk, M] of dz [H, B, chunk, width] with an element for each pair."""
    heads, batch, chunk_size, width = dz.shape
    stride_h, stride_b, _, _ = dz.stride()
    return dz.as_strided((batch, heads, chunk_size, m), (stride_b, stride_h, width - 1, 1), chunk_size - 1)


def chunk_launches(
    plan: Plan,
    dz: Tensor,
    d_scores: Tensor,
    first_column: int,
    columns: tuple[int, int],
    d_table: Tensor,
    relative_q: Tensor,
    do: Tensor,
    chunk_start: int,
    has_d_lse: bool,
    needs_table: bool,
    has_tiles: bool,
) -> dict[str, Launch]:
    """Build the launches for a chunk. bwd_dq_kernel stores whole tiles of dz if has_tiles."""
    heads, _, chunk_size, _ = dz.shape
    relative_q_strides = tensor_strides("relative_q", "bhn", relative_q)
    dq_launch, dq_after_softcap_launch = [
        plan.launch(
            "bwd_dq_kernel",
            "dq",
            heads,
            num_queries=chunk_size,
            has_d_lse=has_d_lse,
            store_d_scores=place,
            chunk_start=chunk_start,
            **tensor_strides("do", "bhn", do),
            **tensor_strides("d_scores", "bhn", d_scores),
            **relative_q_strides,
        )
        for place in ("dz" if has_tiles else "before-softcap", "after-softcap")
    ]
    dense_table_launch = _dense_table_launch(
        plan,
        dz,
        d_table,
        relative_q,
        chunk_start,
        first_column,
        columns,
        needs_table,
        has_tiles=has_tiles,
        table_strides=plan.table_strides,
        dq_strides=plan.output_layouts["dq"][1],
        n=plan.n,
        m=plan.m,
    )
    return {"dq": dq_launch, "dq_after_softcap": dq_after_softcap_launch, "dense_table": dense_table_launch}


def key_chunk_launches(
    plan: Plan,
    dz: Tensor,
    d_scores: Tensor,
    first_column: int,
    columns: tuple[int, int],
    d_table: Tensor,
    chunk_k: Tensor,
    do: Tensor,
    chunk_start: int,
    has_d_lse: bool,
    needs: frozenset[str],
    needs_table: bool,
) -> dict[str, Launch]:
    heads, _, chunk_size, _ = dz.shape
    dkv_launch = plan.launch(
        "bwd_dkv_kernel",
        "dkv",
        heads,
        per_key=True,
        num_keys=chunk_size,
        has_d_lse=has_d_lse,
        store_d_scores="before-softcap",
        needs=needs,
        chunk_start=chunk_start,
        **tensor_strides("do", "bhn", do),
        **tensor_strides("d_scores", "bhn", d_scores),
    )
    launch = _dense_table_launch(
        plan,
        dz,
        d_table,
        chunk_k,
        chunk_start,
        first_column,
        columns,
        needs_table,
        has_tiles=False,
        table_strides=named_strides("dense_table", "hr", list(plan.query_table_strides.values())),
        dq_strides=plan.output_layouts["dk"][1],
        n=plan.m,
        m=plan.n,
    )
    return {"dkv": dkv_launch, "dense_table": launch}


def _dense_table_launch(
    plan: Plan,
    dz: Tensor,
    d_table: Tensor,
    relative_q: Tensor,
    chunk_start: int,
    first_column: int,
    columns: tuple[int, int],
    needs_table: bool,
    *,
    has_tiles: bool,
    table_strides: dict[str, Any],
    dq_strides: tuple[int, ...],
    n: int,
    m: int,
) -> Launch:
    """Build the launch of bwd_dense_table_kernel for a chunk of n queries, or of n keys and the query table."""
    heads, batch, chunk_size, width = dz.shape
    tile = plan.tile("dense_table")
    arguments: dict[str, Any] = {
        **tensor_strides("dz", "hbn", dz),
        **table_strides,
        **tensor_strides("d_table", "hr", d_table),
        **tensor_strides("relative_q", "bhn", relative_q),
        **named_strides("dq", "bhn", dq_strides),
        "B": batch,
        "chunk_start": chunk_start,
        "chunk_size": chunk_size,
        "column_start": columns[0],
        "column_end": columns[1],
        "first_row": n - chunk_start - chunk_size + first_column,  # of the table, for dz's first column
        "num_rows": plan.table_rows,
        "n": n,
        "m": m,
        "scale": plan.scale,
        "OPT": replace(table_options(plan, tile), even_n=has_tiles),
    }
    query_blocks = batch * -(-chunk_size // tile.block_n)
    table_blocks = width // tile.block_m if needs_table else 0
    grid = (query_blocks + table_blocks, heads, 1)
    return Launch(kernels()["bwd_dense_table_kernel"], grid, tile, arguments)
