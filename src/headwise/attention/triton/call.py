"""One call of the kernels: its arguments as they see them, tiles, and launches."""

from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.triton.launch import Launch, Options, Tile, described

FAR_BEFORE, BEFORE, AMONG, AFTER, FAR_AFTER = (1 << side for side in range(5))  # as in `tiles.py`

AROUND = 64  # the longest tile of tables with a row for every relative position


@cache
def kernels() -> Any:
    """All kernels by name, or None where Triton is not installed."""
    try:
        from headwise.attention.triton import backward, forward
    except ImportError:
        return None
    return {**vars(forward), **vars(backward)}


class Call:
    """The operators' arguments and how kernels see them; see `problem.py` for what each is."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> None:
        self.q, self.k, self.v = rows_together(q), rows_together(k), rows_together(v)
        self.w, self.sharpness, self.relative, relative_q, table, self.bias = arguments[:6]
        self.relative_q = None if relative_q is None else rows_together(relative_q)
        self.table = None if table is None else rows_together(table)
        self.mask, self.key_padding, self.query_padding, self.starts, self.ends, self.seed = arguments[6:12]
        self.scale, self.offset, self.causal, self.rectify, self.reach = arguments[12:17]
        self.want_bins, self.dropout, self.want_received, self.want_squares = arguments[17:]
        self.batch, self.heads, self.n, self.width = q.shape
        self.groups, self.m, self.value_width = v.shape[1:]
        self.arguments = arguments
        self.d_log_sums = False  # whether somebody asked for the log-sums
        self.d_pairs = False  # whether the gradient of each pair's score is to be stored

    @property
    def key(self) -> tuple[Any, ...]:
        """All that launches depend on."""
        return (
            self.q.device,
            torch.get_float32_matmul_precision(),
            described(self.q),
            described(self.k),
            described(self.v),
            *[described(x) if isinstance(x, Tensor) else x for x in self.arguments],
        )

    def outputs(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Output, log-sums, and if asked for received, bins and squares."""
        rows = (self.batch, self.heads, self.n)
        keys = (self.batch, self.heads, self.m)
        return (
            beside(self.q, self.value_width),
            self.q.new_empty(rows, dtype=torch.float32),
            self.q.new_empty(keys, dtype=torch.float32) if self.want_received else None,
            self.q.new_zeros((*rows, 2 * self.reach + 1)) if self.want_bins else None,
            self.q.new_empty(rows, dtype=torch.float32) if self.want_squares else None,
        )

    def gradients(self, needs_bias: bool) -> tuple[Tensor | None, ...]:
        """Of all that is differentiable and there, in the arguments' order."""
        bias = self.bias if needs_bias else None
        return (
            *(beside(x, x.shape[3]) for x in (self.q, self.k, self.v)),
            None if self.w is None else self.w.new_empty(self.heads),
            None if self.w is None else self.w.new_empty(self.heads),
            None if self.relative is None else self.q.new_zeros(self.relative.shape),
            None if self.relative_q is None else self.q.new_empty(self.relative_q.shape),
            None if self.table is None else self.q.new_empty(self.table.shape),
            None if bias is None else bias.new_zeros(bias.shape),
        )

    def tensors(self, **more: Tensor | None) -> dict[str, Tensor]:
        """The kernels' tensors by name; for one that is not there, which no kernel reads, any other."""
        given: dict[str, Tensor | None] = {
            "q_ptr": self.q,
            "k_ptr": self.k,
            "v_ptr": self.v,
            "w_ptr": self.w,
            "sharpness_ptr": self.sharpness,
            "relative_ptr": None if self.relative is None else self.relative.contiguous(),
            "edges_ptr": None if self.relative is None else edges(self.relative),
            "key_padding": _bytes(self.key_padding),
            "query_padding": _bytes(self.query_padding),
            "mask": None if self.mask is None else self.mask.view(torch.uint8),
            "bias": self.bias,
            "starts": self.starts,
            "ends": self.ends,
            "seed_ptr": self.seed,
            "sums_ptr": None,
            "relative_q_ptr": self.relative_q,
            "table_ptr": self.surrounded,
            **more,
        }
        return {name: self.q if x is None else x for name, x in given.items()}

    @cached_property
    def surrounded(self) -> Tensor | None:
        """The table with rows before and behind it that kernels may read: a tile's length of zeros."""
        if self.table is None:
            return None
        return pad(self.table, (0, 0, AROUND, AROUND))[:, AROUND:]

    def launch(
        self, name: str, kind: str, heads: int, *, per_key: bool = False, queries: int = 0, **more: Any
    ) -> Launch:
        """A kernel's launch: programs for each head and block of (some) queries or of keys, or, given their number, of
        all. The bias's kernel has programs for each block of pairs; `heads` are those of all its texts.
        """
        tile = self.tile(kind)
        whole = (self.batch, self.heads, self.n, self.m)
        arguments: dict[str, Any] = {
            **strides("q", "bhn", self.q),
            **strides("k", "bhm", self.k),
            **strides("v", "bhm", self.v),
            **lain("o", "bhn", self.q, self.value_width),
            **lain("dq", "bhn", self.q, self.width),
            **lain("dk", "bhm", self.k, self.width),
            **lain("dv", "bhm", self.v, self.value_width),
            **strides("relative_q", "bhn", self.relative_q),
            **strides("table", "hr", self.surrounded),
            **strides("mask", "bhnm", None if self.mask is None else self.mask.expand(whole)),
            **strides("bias", "bhnm", None if self.bias is None else self.bias.expand(whole)),
            "H": self.heads,
            "G": self.groups,
            "B": self.batch,
            "GROUP": self.heads // self.groups,
            "start": 0,
            "n": self.n,
            "m": self.m,
            "offset": self.offset,
            "reach": self.reach,
            "scale": self.scale,
            "dropout": self.dropout,
            "OPT": self.options(tile),
            **more,
        }
        rows, keys = -(-(queries or self.n) // tile.rows), -(-self.m // tile.columns)
        blocks = 1 if "blocks" in more else keys if per_key else rows
        grid = (blocks, heads, keys if kind == "bias" else self.batch)
        return Launch(kernels()[name], grid, tile, arguments)

    def tile(self, kind: str) -> Tile:
        """What was fastest on an H200 (docs/design.md)."""
        widest = max(_power_of_two(self.width), _power_of_two(self.value_width))
        if self.q.dtype == torch.float32 or widest > 128:
            return Tile(32, 32, 4 if self.table is None else 8)
        if self.fits(Tile(64, 64)):
            return Tile(64, 64)
        wide = widest > 64
        if self.table is not None:  # tiles that are read askew are square
            return {
                "forward": Tile(64, 64, 8 if wide else 4, 3),
                "keys": Tile(64, 64, 8 if wide else 4, 1),
                "queries": Tile(64, 64, 8 if wide else 4, 2),
                "sums": Tile(64, 64, 4, 2),
            }[kind]
        plain = self.w is None and self.relative is None and not self.want_bins
        drops = self.seed is not None
        return {
            "forward": Tile(128, 64, 8, 3) if plain and not drops else Tile(64, 64, 4, 3),
            "keys": Tile(64, 64, 4, 2 if wide or drops else 3),
            "queries": Tile(128, 64, 8, 3) if plain and not wide and not self.want_received else Tile(64, 64, 4, 3),
            "sums": Tile(64, 64, 4, 3),
        }.get(kind, Tile(64, 64, 4, 1))

    def fits(self, tile: Tile) -> bool:
        """Whether one tile is all there is: then kernels have no loop.

        Without a loop, blocks of different widths gave wrong products on an H200 (Triton 3.6).
        """
        even = _power_of_two(self.width) == _power_of_two(self.value_width)
        return even and self.n <= tile.rows and self.m <= tile.columns

    @cached_property
    def alone(self) -> bool:
        """Whether one tile of the keys' kernel is all there is, and it computes every gradient."""
        table = self.relative is not None or self.table is not None or self.want_bins
        return self.fits(self.tile("keys")) and not table and self.bias is None

    @cached_property
    def skips(self) -> bool:
        """Whether far keys that score 0 enter as one sum; what else changes their weights forbids it."""
        others = (self.mask, self.bias, self.starts, self.seed)
        long = self.n > 128 or self.m > 64
        return self.w is not None and long and all(x is None for x in others) and not self.want_received

    def options(self, tile: Tile) -> Options:
        table = self.relative is not None or self.want_bins
        single = self.fits(tile)
        if single:
            sides = AMONG
        elif self.w is not None:
            sides = FAR_BEFORE | BEFORE | AMONG | (0 if self.causal else AFTER | FAR_AFTER)
        elif table:
            sides = FAR_BEFORE | AMONG | (0 if self.causal else FAR_AFTER)
        else:
            sides = FAR_BEFORE | (AMONG if self.causal else 0)
        tf32 = self.q.dtype != torch.float32 or torch.get_float32_matmul_precision() != "highest"
        return Options(
            width=self.width,
            value_width=self.value_width,
            block_e=_power_of_two(self.width),
            block_d=_power_of_two(self.value_width),
            block_n=tile.rows,
            block_m=tile.columns,
            sides=sides,
            single=single,
            alone=self.alone,
            causal=self.causal,
            distance=self.w is not None,
            rectify=self.rectify,
            skips=self.skips,
            relative=self.relative is not None,
            bins=self.want_bins,
            table=table,
            askew=self.table is not None,
            key_padding=self.key_padding is not None,
            query_padding=self.query_padding is not None,
            mask=self.mask is not None,
            bias=self.bias is not None,
            d_pairs=self.d_pairs,
            packed=self.starts is not None,
            dropout=self.seed is not None,
            received=self.want_received,
            squares=self.want_squares,
            d_log_sums=self.d_log_sums,
            even_m=self.m % tile.columns == 0,
            fast=self.q.device.type == "cuda" and torch.version.hip is None,
            precision="tf32" if tf32 else "ieee",
        )


def _power_of_two(width: int) -> int:
    """At least 32: Triton 3.6 lets Hopper's products with 16 columns read past the end of shared memory."""
    return max(32, 1 << (width - 1).bit_length())


def rows_together(x: Tensor) -> Tensor:
    """x with each row in one piece of memory."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _bytes(padding: Tensor | None) -> Tensor | None:
    return None if padding is None else padding.contiguous().view(torch.uint8)


def edges(table: Tensor) -> Tensor:
    """A table's first and last column, (B, H, 2, N)."""
    return torch.stack((table[..., 0], table[..., -1]), dim=2)


def beside(x: Tensor, width: int) -> Tensor:
    """A new tensor of x's shape but for its width, that lies in memory as x does: heads or rows next to each other."""
    batch, heads, rows, _ = x.shape
    return x.new_empty_strided((batch, heads, rows, width), (*beside_strides(x, width), 1))


def beside_strides(x: Tensor, width: int) -> tuple[int, int, int]:
    _, heads, rows, _ = x.shape
    _, by_head, by_row, _ = x.stride()
    whole = heads * rows * width
    return (whole, width, heads * width) if by_head < by_row else (whole, rows * width, width)


def lain(name: str, axes: str, x: Tensor, width: int) -> dict[str, Any]:
    """The strides of `beside`, by name."""
    return {f"{name}_{axis}": stride for axis, stride in zip(axes, beside_strides(x, width), strict=True)}


def strides(name: str, axes: str, x: Tensor | None) -> dict[str, Any]:
    return {f"{name}_{axis}": 0 if x is None else x.stride(place) for place, axis in enumerate(axes)}
