"""Problems: what is known about a call without the values of its tensors, and which tiles and options follow from it.

A dense table has a row for every relative position (`SchemeTerms.is_full_table`). A clipped table has 2k + 1 rows.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from headwise import _compat
from headwise.attention.triton_backend.launch import Options, Tile
from headwise.attention.triton_backend.layouts import has_contiguous_rows
from headwise.attention.triton_backend.staging import NOTHING_STAGED
from headwise.attention.triton_backend.tile_sizes import fastest_tile, power_of_two

#: Bits of Options.regions, in the order of `tiles.py`.
FAR_BEFORE, BEFORE, DIAGONAL, AFTER, FAR_AFTER = (1 << region for region in range(5))

#: Up to this length distance-aware attention has one loop over all keys. It was faster at 256 and 512 on an H200.
MAX_SHORT_LENGTH = 512

#: The same if distance factors are kept in shared memory, which was faster at 1024 and slower at 2048.
MAX_STAGED_LENGTH = 1024

#: Size of a window without a limit on one side. Positions plus this fit into 32 bits.
NO_LIMIT = 2**30

#: The operators' tensor arguments, by the names of the kernels' parameters.
TENSOR_PARAMS = (
    "q_ptr", "k_ptr", "v_ptr", "w_ptr", "sharpness_ptr", "relative_scores_ptr", "bias_uv_ptr", "dense_table_ptr",
    "query_table_ptr", "relative_bias_ptr", "position_q_ptr", "bias_ptr", "sinks_ptr", "position_k_ptr", "mask_ptr",
    "key_padding_ptr", "query_padding_ptr", "seq_starts_ptr", "seq_ends_ptr", "seed_ptr",
)  # fmt: skip
#: The differentiable ones, in the order of their gradients.
DIFFERENTIABLE = tuple(name.removesuffix("_ptr") for name in TENSOR_PARAMS[:13])
#: Indices of those whose rows must be contiguous.
CONTIGUOUS_PARAMS = tuple(
    TENSOR_PARAMS.index(f"{name}_ptr")
    for name in ("q", "k", "v", "dense_table", "query_table", "position_q", "position_k")
)


class Problem:
    """The shapes, dtypes and options of all calls whose arguments have the same layouts.

    Args:
        arguments: the operators' arguments (`operator.ARGUMENTS`). The values of tensors are not used.
        device: the device of the call, if the tensors are on another one.
    """

    def __init__(self, *arguments: Any, device: torch.device | None = None) -> None:
        self.non_contiguous = [
            i for i in CONTIGUOUS_PARAMS if arguments[i] is not None and not has_contiguous_rows(arguments[i])
        ]
        arguments = self.contiguous_args(arguments)
        q, k, v, w, sharpness = arguments[:5]
        self.q, self.k, self.v, self.w = q, k, v, w
        self.relative_scores, self.bias_uv, self.dense_table, self.query_table, self.relative_bias = arguments[5:10]
        self.position_q, self.bias, self.sinks, self.position_k, self.mask, *others = arguments[10:]
        self.key_padding, self.query_padding, self.seq_starts, self.seq_ends, self.seed = others[:5]
        self.scale, self.softcap, self.q_offset, self.causal, left, right, self.rectify, self.max_offset = others[5:13]
        self.want_offset_sums, self.dropout, self.want_received, self.want_weight_norms = others[13:]
        self.has_distance = w is not None and sharpness is not None
        self.has_slopes = w is not None and sharpness is None
        self.has_window = left >= 0 or right >= 0
        self.window_left, self.window_right = (NO_LIMIT if limit < 0 else limit for limit in (left, right))
        self.device = q.device if device is None else device
        self.uses_tf32 = _compat.uses_tf32()
        self.batch, self.heads, self.n, self.width = q.shape
        self.groups, self.m, self.value_width = v.shape[1:]
        self.has_key_lengths = self.seq_ends is not None and self.seq_ends.shape[0] == self.n + self.m
        self.query_shape = (self.batch, self.heads, self.n)

    def contiguous_args(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments, with contiguous copies of tensors whose rows are not contiguous."""
        if not self.non_contiguous:
            return arguments
        return tuple(x.contiguous() if i in self.non_contiguous else x for i, x in enumerate(arguments))

    @property
    def position_width(self) -> int:
        """Width of position_q and position_k, 0 without them."""
        return 0 if self.position_q is None else int(self.position_q.shape[3])

    @property
    def table_rows(self) -> int:
        """Number of rows of a dense table without its padding."""
        return int(max(self.n + self.m - 1, 0))

    def tile(self, name: str) -> Tile:
        """Return the tile of a kernel, without software pipelining if shared memory or the compiler does not allow it.

        Args:
            name: the kernel: "fwd", "dq", "dkv", "dbias", "received" (forward and backward), or "dense_table".
        """
        tile = self._fastest_tile(name)
        is_dense, is_wide = self.dense_table is not None, self._max_block_width > 64
        needed_smem = 160 * 1024 if is_dense or is_wide else 0  # of an A100
        if is_dense and is_wide and name == "dkv" and self.max_smem < needed_smem:
            return Tile(32, 32, 4, 1)
        if self.query_table is not None:
            return replace(tile, num_stages=1)
        if self.is_blackwell and is_dense and name != "dense_table":
            # Triton's pipeline would load shifted products before they are stored (docs/design.md).
            return replace(tile, num_stages=1)
        if self.is_blackwell and is_wide and self.position_q is not None and name == "dq":  # needs more shared memory
            tile = replace(tile, num_stages=2)
        if is_dense and (is_wide or name == "dq") and self.max_smem < 227 * 1024:  # of an H100
            if is_wide and self.mask is not None and self.bias is not None:
                return replace(tile, num_stages=1)
            tile = replace(tile, num_stages=min(tile.num_stages, 3 if name == "fwd" else 2))
        return replace(tile, num_stages=1) if self.max_smem < needed_smem else tile

    @cached_property
    def max_smem(self) -> int:
        """Shared memory that a program can have, in bytes."""
        if self.device.type != "cuda":
            return 227 * 1024
        return int(getattr(torch.cuda.get_device_properties(self.device), "shared_memory_per_block_optin", 0))

    @property
    def is_nvidia(self) -> bool:
        """Whether the device is an NVIDIA GPU."""
        return self.device.type == "cuda" and torch.version.hip is None

    @cached_property
    def capability(self) -> tuple[int, int]:
        """Compute capability of an NVIDIA GPU."""
        return torch.cuda.get_device_capability(self.device)

    @property
    def is_blackwell(self) -> bool:
        """Whether the device is an NVIDIA GPU of compute capability 10.0 or newer."""
        return self.is_nvidia and self.capability >= (10, 0)

    @cached_property
    def is_fast(self) -> bool:
        """Whether kernels use inline assembly for NVIDIA GPUs."""
        return self.is_nvidia and (self.dense_table is None or self.can_reserve_smem)

    @cached_property
    def can_reserve_smem(self) -> bool:
        """Whether kernels can reserve shared memory in addition to Triton's."""
        return self.is_nvidia and _compat.reserved_shared_memory.works(self.device)

    @cached_property
    def can_stage_distance(self) -> bool:
        """Whether shared memory can hold the factors of distance-aware attention, by relative position."""
        has_only_distance = self.has_distance and not self.has_clipped_table and self.dense_table is None
        return has_only_distance and not self.has_key_lengths and self.can_reserve_smem

    @property
    def _max_block_width(self) -> int:
        return max(power_of_two(width) for width in (self.width, self.value_width, self.position_width) if width)

    def _fastest_tile(self, name: str) -> Tile:
        """Return the tile that was fastest on an H200 (docs/design.md)."""
        return fastest_tile(
            name,
            width=self._max_block_width,
            is_float32=self.q.dtype == torch.float32,
            is_single_tile=self.fits(Tile(64, 64)),
            has_dense_table=self.dense_table is not None,
            has_position_product=self.position_q is not None,
            has_position_terms=self.has_distance or self.has_clipped_table,
            has_relative_bias=self.relative_bias is not None,
            has_clipped_table=self.has_clipped_table,
            is_short=self.is_short,
            has_pair_inputs=self.mask is not None or self.bias is not None,
            has_dropout=self.seed is not None,
            want_received=self.want_received,
        )

    def fits(self, tile: Tile) -> bool:
        """Whether one tile holds all queries and keys, so that kernels have no loop.

        Blocks of q and v must have the same width: without a loop, others gave wrong products on an H200 (Triton 3.6).
        """
        same_width = power_of_two(self.width) == power_of_two(self.value_width)
        return same_width and self.n <= tile.block_n and self.m <= tile.block_m

    @property
    def has_clipped_table(self) -> bool:
        """Whether far keys share a row of a clipped table of keys, values or biases."""
        return self.relative_scores is not None or self.relative_bias is not None or self.want_offset_sums

    @cached_property
    def single_tile_backward(self) -> bool:
        """Whether bwd_dkv_kernel computes all gradients, because one of its tiles holds all queries and keys."""
        has_table = self.has_clipped_table or self.dense_table is not None or self.position_q is not None
        return self.fits(self.tile("dkv")) and not has_table and self.bias is None and self.sinks is None

    @cached_property
    def received_in_dq(self) -> bool:
        """Whether bwd_dq_kernel computes the part of delta from received attention, if it runs.

        Then dq must be all that it computes, and each query's weights must sum to 1.
        """
        others = (self.w, self.relative_scores, self.relative_bias, self.dense_table, self.position_q, self.bias)
        is_plain = all(x is None for x in others) and not self.want_offset_sums and not self.softcap
        is_narrow = self._max_block_width <= 64  # otherwise registers are spilled
        return self.want_received and is_plain and is_narrow and self.sinks is None and not self.single_tile_backward

    @property
    def is_short(self) -> bool:
        """Whether one loop over all keys is faster than one per region, for distance-aware attention."""
        max_length = MAX_STAGED_LENGTH if self.can_stage_distance else MAX_SHORT_LENGTH
        return bool(max(self.n, self.m) <= max_length)

    @cached_property
    def sum_far_keys(self) -> bool:
        """Whether far keys with score 0 are summed by prefix sums.

        This is not possible with masks, windows, biases, dropout, packed sequences or received attention.
        """
        modifiers = (self.mask, self.bias, self.seq_starts, self.seed)
        can_sum = all(x is None for x in modifiers) and not self.has_window and not self.want_received
        return self.has_distance and not self.is_short and can_sum

    def skips_tiles(self, tile: Tile) -> bool:
        """Whether tiles without any unmasked pair are skipped."""
        return self.mask is not None and not self.fits(tile)

    def options(
        self,
        tile: Tile,
        *,
        has_d_lse: bool = False,
        store_d_scores: str = "",
        needs: frozenset[str] = frozenset(),
        sums_in_output: bool = False,
        staging: Mapping[str, Any] = NOTHING_STAGED,
    ) -> Options:
        single_tile = self.fits(tile)
        one_region = (self.has_distance and self.is_short) or self.has_key_lengths
        if single_tile or one_region:
            regions = DIAGONAL
        elif self.has_distance:
            regions = FAR_BEFORE | BEFORE | DIAGONAL | (0 if self.causal else AFTER | FAR_AFTER)
        elif self.has_clipped_table:
            regions = FAR_BEFORE | DIAGONAL | (0 if self.causal else FAR_AFTER)
        else:
            regions = FAR_BEFORE | (DIAGONAL if self.causal else 0)
        tf32 = self.q.dtype != torch.float32 or self.uses_tf32
        return Options(
            half=self.q.dtype != torch.float32,
            width=self.width,
            value_width=self.value_width,
            block_e=power_of_two(self.width),
            block_d=power_of_two(self.value_width),
            block_n=tile.block_n,
            block_m=tile.block_m,
            regions=regions,
            one_region=one_region,
            single_tile=single_tile,
            single_tile_backward=self.single_tile_backward,
            causal=self.causal,
            distance=self.has_distance,
            slopes=self.has_slopes,
            rectify=self.rectify,
            sum_far_keys=self.sum_far_keys,
            relative_scores=self.relative_scores is not None,
            offset_sums=self.want_offset_sums,
            sums_in_output=sums_in_output,
            relative_bias=self.relative_bias is not None,
            clipped_table=self.has_clipped_table,
            relative_shift=self.dense_table is not None,
            query_table=self.query_table is not None,
            position_width=self.position_width,
            block_p=power_of_two(self.position_width) if self.position_width else 0,
            window=self.has_window,
            softcap=self.softcap > 0.0,
            sinks=self.sinks is not None,
            skip_tiles=self.skips_tiles(tile),
            key_padding=self.key_padding is not None,
            query_padding=self.query_padding is not None,
            mask=self.mask is not None,
            bias=self.bias is not None,
            store_d_scores=store_d_scores,
            cu_seqlens=self.seq_starts is not None,
            cu_seqlens_k=self.has_key_lengths,
            dropout=self.seed is not None,
            received=self.want_received,
            received_in_dq=self.received_in_dq,
            weight_norms=self.want_weight_norms,
            has_d_lse=has_d_lse,
            even_n=self.n % tile.block_n == 0,
            even_m=self.m % tile.block_m == 0,
            needs_dq="q" in needs or self.dense_table is not None,
            needs_dk=not needs.isdisjoint(("k", "query_table")),
            needs_dv="v" in needs,
            needs_position_q="position_q" in needs,
            needs_distance=not needs.isdisjoint(("w", "sharpness")),
            needs_relative="relative_scores" in needs,
            needs_relative_bias="relative_bias" in needs,
            fast=self.is_fast,
            precision="tf32" if tf32 else "ieee",
            **staging,
        )
