"""What the kernels need to know of a call before they see its numbers: shapes, tiles, launches.

To find it out takes longer than a short text's attention, so it is done once for all calls of one kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.attention.triton_backend.launch import Launch, Options, Tile

FAR_BEFORE, BEFORE, AMONG, AFTER, FAR_AFTER = (1 << side for side in range(5))  # as in `tiles.py`

#: Tables with a row for every relative position have so many rows before and behind them, a tile's, that kernels read.
AROUND = 64


@cache
def kernels() -> Any:
    """All kernels by name, or None where Triton is not installed."""
    try:
        from headwise.attention.triton_backend import backward, forward, multi_layer_received_kernels, table
    except ImportError:
        return None
    return {**vars(forward), **vars(backward), **vars(table), **vars(multi_layer_received_kernels)}


#: The operators' arguments that are tensors, by the names that kernels have for them.
TENSORS = (
    "q_ptr", "k_ptr", "v_ptr", "w_ptr", "sharpness_ptr", "relative_ptr", "biases_ptr", "table_ptr", "bias", "mask",
    "key_padding", "query_padding", "starts", "ends", "seed_ptr",
)  # fmt: skip
#: Those of which the kernels want rows in one piece of memory.
IN_ROWS = tuple(TENSORS.index(name) for name in ("q_ptr", "k_ptr", "v_ptr", "table_ptr"))


class Plan:
    """How calls of one kind are run; `problem.py` says what each argument is.

    Args:
        arguments: the operators' arguments; of tensors all but the numbers is looked at.
        device: where they really are.
    """

    def __init__(self, *arguments: Any, device: torch.device | None = None) -> None:
        self.apart = [i for i in IN_ROWS if arguments[i] is not None and not in_rows(arguments[i])]
        q, k, v, w, _, relative, biases, table, bias, mask, *_ = arguments = self.together(arguments)
        self.q, self.k, self.v, self.w, self.relative, self.bias, self.mask = q, k, v, w, relative, bias, mask
        self.biases, self.table = biases, table
        self.key_padding, self.query_padding, self.starts, self.ends, self.seed = arguments[10:15]
        self.scale, self.offset, self.causal, self.rectify, self.reach = arguments[15:20]
        self.want_bins, self.dropout, self.want_received, self.want_squares = arguments[20:]
        self.device = q.device if device is None else device
        self.precision = torch.get_float32_matmul_precision()
        self.batch, self.heads, self.n, self.width = q.shape
        self.groups, self.m, self.value_width = v.shape[1:]
        self.rows = (self.batch, self.heads, self.n)
        self._launches: dict[Any, dict[str, Launch]] = {}

    def together(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with each row in one piece of memory."""
        if not self.apart:
            return arguments
        return tuple(x.contiguous() if i in self.apart else x for i, x in enumerate(arguments))

    def outputs(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Output, log-sums, and if asked for received, bins and weight_norms: new tensors where q is."""
        keys = (self.batch, self.heads, self.m)
        return (
            q.new_empty_strided(*self.lying["o"]),
            q.new_empty(self.rows, dtype=torch.float32),
            q.new_empty(keys, dtype=torch.float32) if self.want_received else None,
            q.new_zeros((*self.rows, 2 * self.reach + 1)) if self.want_bins else None,
            q.new_empty(self.rows, dtype=torch.float32) if self.want_squares else None,
        )

    def gradients(self, q: Tensor, needs_bias: bool) -> list[Tensor | None]:
        """Of all that is differentiable and there, in the arguments' order: new tensors where q is.

        Those of w, v and the biases are made when they are summed.
        """
        bias = self.bias if needs_bias else None
        return [
            *(q.new_empty_strided(*self.lying[name]) for name in ("dq", "dk", "dv")),
            None,
            None,
            None if self.relative is None else q.new_zeros(self.relative.shape),
            None,
            None if self.table is None else q.new_empty(self.table.shape),
            None if bias is None else q.new_zeros(bias.shape, dtype=bias.dtype),
        ]

    @cached_property
    def lying(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes and strides of new tensors: they lie in memory as the tensor does that they belong to."""
        belong = {"o": (self.q, self.v), "dq": (self.q, self.q), "dk": (self.k, self.k), "dv": (self.v, self.v)}
        return {name: beside(x, like.shape[3]) for name, (x, like) in belong.items()}

    def tensors(self, arguments: tuple[Any, ...], **more: Tensor | None) -> dict[str, Tensor | None]:
        """The kernels' tensors by name."""
        given = dict(zip(TENSORS, arguments, strict=False), **more)
        if (relative := given["relative_ptr"]) is not None:
            given["relative_ptr"] = relative = relative.contiguous()
            given["edges_ptr"] = edges(relative)
        if (table := given["table_ptr"]) is not None:
            given["table_ptr"] = table[:, AROUND:]
        if (biases := given["biases_ptr"]) is not None:
            given["biases_ptr"] = biases.contiguous()
        if (mask := given["mask"]) is not None:
            given["mask"] = mask.view(torch.uint8)
        for name in ("key_padding", "query_padding"):
            if (padding := given[name]) is not None:
                given[name] = padding.contiguous().view(torch.uint8)
        return given

    def launches(self, prepare: Callable[..., dict[str, Launch]], *others: Any) -> dict[str, Launch]:
        """What `prepare(plan, *others)` returns, prepared once for all others of one kind."""
        key = (prepare, *[described(x) if isinstance(x, Tensor) else x for x in others])
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = prepare(self, *others)
        return found

    def launch(
        self,
        name: str,
        kind: str,
        heads: int,
        *,
        layers: int = 1,
        per_key: bool = False,
        queries: int = 0,
        d_log_sums: bool = False,
        d_pairs: bool = False,
        **more: Any,
    ) -> Launch:
        """A kernel's launch: programs for each head and block of (some) queries or of keys, or, given their number, of
        all, in some layers. The bias's kernel has programs for each block of pairs; `heads` are those of all its texts.
        """
        tile = self.tile(kind)
        whole = (self.batch, self.heads, self.n, self.m)
        arguments: dict[str, Any] = {
            **strides("q", "bhn", self.q),
            **strides("k", "bhm", self.k),
            **strides("v", "bhm", self.v),
            **named("o", "bhn", self.lying["o"][1]),
            **named("dq", "bhn", self.lying["dq"][1]),
            **named("dk", "bhm", self.lying["dk"][1]),
            **named("dv", "bhm", self.lying["dv"][1]),
            **strides("relative_q", "bhn", None),
            "table_terms_h": 0 if self.table is None else self.table_rows + 2 * AROUND,
            **self.table_strides,
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
            "OPT": self.options(tile, d_log_sums=d_log_sums, d_pairs=d_pairs),
            **more,
        }
        rows, keys = _blocks(queries or self.n, tile.rows), _blocks(self.m, tile.columns)
        blocks = 1 if "blocks" in more else keys if per_key else rows
        grid = (blocks, heads, keys if kind == "bias" else self.batch * layers)
        return Launch(kernels()[name], grid, tile, arguments)

    @cached_property
    def query_blocks(self) -> int:
        """Of the kernel of their gradients."""
        return _blocks(self.n, self.tile("queries").rows)

    @cached_property
    def key_blocks(self) -> int:
        """Of the forward kernel."""
        return _blocks(self.m, self.tile("forward").columns)

    @property
    def table_rows(self) -> int:
        """Of a table with a row for every relative position, but for the spare ones."""
        return int(max(self.n + self.m - 1, 0))

    @cached_property
    def table_strides(self) -> dict[str, Any]:
        return strides("table", "hr", self.table)

    def tile(self, kind: str) -> Tile:
        """The fastest one, as far as shared memory goes."""
        tile = self._fastest(kind)
        large = self.table is not None or self._widest > 64
        return replace(tile, stages=1) if large and not self.roomy else tile

    @cached_property
    def roomy(self) -> bool:
        """Whether a program may have as much shared memory as pipelines of wide tiles take (NVIDIA's A100, H100, …)."""
        if self.device.type != "cuda":
            return True
        properties = torch.cuda.get_device_properties(self.device)
        return bool(getattr(properties, "shared_memory_per_block_optin", 0) >= 160 * 1024)

    @property
    def _widest(self) -> int:
        return max(_power_of_two(self.width), _power_of_two(self.value_width))

    def _fastest(self, kind: str) -> Tile:
        """What was fastest on an H200 (docs/design.md)."""
        widest = self._widest
        if self.q.dtype == torch.float32 or widest > 128:
            return Tile(32, 32, 4 if self.table is None or kind == "strips" else 8)
        wide = widest > 64
        if kind == "strips":
            return Tile(64, 64 if wide else 128, 4, 4)
        if self.fits(Tile(64, 64)):
            return Tile(64, 64)
        if self.table is not None:  # tiles that are read askew are square
            return {
                "forward": Tile(64, 64, 8 if wide else 4, 3),
                "keys": Tile(64, 64, 8 if wide else 4, 2),
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

    def options(self, tile: Tile, *, d_log_sums: bool = False, d_pairs: bool = False) -> Options:
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
        tf32 = self.q.dtype != torch.float32 or self.precision != "highest"
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
            d_pairs=d_pairs,
            cu_seqlens=self.starts is not None,
            dropout=self.seed is not None,
            received=self.want_received,
            weight_norms=self.want_squares,
            d_log_sums=d_log_sums,
            even_m=self.m % tile.columns == 0,
            fast=self.device.type == "cuda" and torch.version.hip is None,
            precision="tf32" if tf32 else "ieee",
        )


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


def _power_of_two(width: int) -> int:
    """At least 32: Triton 3.6 lets Hopper's products with 16 columns read past the end of shared memory."""
    return max(32, 1 << (width - 1).bit_length())


def in_rows(x: Tensor) -> bool:
    """Whether each row lies in one piece of memory."""
    return x.stride(-1) == 1 or x.shape[-1] == 1


def laid(x: Tensor, shape: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """x as it lies in memory by these strides."""
    return x if x.stride() == steps else x.new_empty_strided(shape, steps).copy_(x)


def surrounded(table: Tensor) -> Tensor:
    """A table with zeros before and behind it, in which each head's rows lie together."""
    return pad(table, (0, 0, AROUND, AROUND))


def edges(table: Tensor) -> Tensor:
    """A table's first and last column, (B, H, 2, N)."""
    return torch.stack((table[..., 0], table[..., -1]), dim=2)


def beside(x: Tensor, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of x but for its width, with heads or rows next to each other as x has them."""
    batch, heads, rows, _ = x.shape
    _, by_head, by_row, _ = x.stride()
    whole = heads * rows * width
    steps = (whole, width, heads * width, 1) if by_head < by_row else (whole, rows * width, width, 1)
    return (batch, heads, rows, width), steps


def strides(name: str, axes: str, x: Tensor | None) -> dict[str, Any]:
    """A tensor's strides as kernels call them; for one that is not there, 0."""
    return named(name, axes, [0] * len(axes) if x is None else x.stride())


def named(name: str, axes: str, steps: Sequence[int]) -> dict[str, Any]:
    return {f"{name}_{axis}": step for axis, step in zip(axes, steps, strict=False)}


def described(x: Tensor) -> Any:
    """All that a launch depends on in a tensor: everything but where it lies and what it holds."""
    return x.dtype, x.shape, x.stride(), x.data_ptr() % 16


_plans: dict[Any, Plan] = {}


def plan_of(*arguments: Any) -> Plan:
    """The plan of a call, made once for all calls of one kind."""
    tensors, settings = arguments[: len(TENSORS)], arguments[len(TENSORS) :]
    device, precision = tensors[0].device, torch.get_float32_matmul_precision()
    key = (device, precision, settings, *[None if x is None else described(x) for x in tensors])
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= 1000:
            _plans.clear()
        plan = Plan(*[None if x is None else twin(x) for x in tensors], *settings, device=device)
        if plan.table is not None and plan.table.shape[1] != (rows := plan.table_rows + 2 * AROUND):
            raise ValueError(f"table must have {rows} rows, of which {AROUND} on either side are spare")
        _plans[key] = plan
    return plan


def twin(x: Tensor) -> Tensor:
    """A tensor like another, but without numbers."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
