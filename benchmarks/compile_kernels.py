"""Compile the Triton kernels for GPUs that are not here, and print what they need: registers, stack, shared memory.

    python benchmarks/compile_kernels.py
    python benchmarks/compile_kernels.py --capabilities 86 90 --schemes rpr --lengths 512 --width 128
    python benchmarks/compile_kernels.py --schemes transformer-xl --bias
    python benchmarks/compile_kernels.py --schemes plain --received
    python benchmarks/compile_kernels.py --schemes plain --dropout
    python benchmarks/compile_kernels.py --schemes plain --padding --lengths 500

It needs no GPU. Triton compiles for each compute capability, and contains NVIDIA's assembler. Registers that do not fit
are spilled to a stack in memory. The exit code is 1 if a kernel needs more shared memory than a program can have there,
or loads from shared memory that it reserves before it stores there.
For each loop over tiles, in the order of regions, the number of instructions for each pair of query and key is printed,
and how many of them are exponentials and reciprocals (MUFU). One of these takes as long as eight other instructions, at
the same time as these.
"serialized" means that the assembler lets each matrix product wait for the one before.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import MockTensor

from headwise import _compat
from headwise.attention.triton_backend import cached_passes, decoding
from headwise.attention.triton_backend.cached_tables import TableCall
from headwise.attention.triton_backend.decoding import DecodeCall
from headwise.attention.triton_backend.launch import Launch
from headwise.attention.triton_backend.layouts import padded_rows
from headwise.attention.triton_backend.passes import backward_launches, forward_launches
from headwise.attention.triton_backend.plan import TABLE_PADDING, Plan
from headwise.attention.triton_backend.problem import DIFFERENTIABLE, TENSOR_PARAMS
from headwise.attention.triton_backend.transformer_xl import (
    chunk_launches,
    max_chunk_size,
    new_dz,
    stores_dz_tiles,
)

#: Shared memory of a program in bytes, by compute capability (CUDA C++ Programming Guide, technical specifications).
MAX_SMEM = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448}
EXAMPLES = {80: "A100", 86: "A10, RTX 3090", 89: "L4, L40, RTX 4090", 90: "H100, H200", 100: "B200"}

SCHEMES = ("plain", "distance-aware", "rpr", "transformer-xl", "disentangled", "tener")
BATCH, HEADS, K = 4, 8, 16

#: Tensors of kernels that have the dtype of the queries. The others are float32, not read, or in `OTHER_DTYPES`.
INPUT_DTYPE = (
    *("q", "k", "v", "o", "do", "dq", "dk", "dv", "relative_scores", "offset_sums", "d_offset_sums", "dense_table"),
    "query_table",
    *("d_relative_scores", "relative_q", "d_scores", "dz", "x", "sums", "out", "scores"),
    *("position_q", "position_k", "d_position_q"),
)
OTHER_DTYPES = {
    "mask": torch.uint8,
    "key_padding": torch.uint8,
    "layer_offsets": torch.int64,
    "seed": torch.int64,
} | dict.fromkeys(("visited", "visited_columns", "visited_rows"), torch.int32)


class OtherGpu:
    """Triton's driver of a GPU that is not here. It can compile, not launch.

    Args:
        capability: the compute capability, such as 90.
    """

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps compiled kernels by device

    def get_current_stream(self, device: int = 0) -> int:
        return 0


class Resources(NamedTuple):
    """What a compiled kernel needs."""

    kernel: str
    tile: str
    registers: int
    stack: int  # bytes, for spilled registers
    smem: int
    loops: tuple[tuple[float, float], ...]  # over tiles: instructions for each pair, and those of them that are MUFU
    is_serialized: bool  # asynchronous matrix products wait for each other
    loads_first: bool  # from shared memory that it reserves, before it stores there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", choices=MAX_SMEM, default=list(MAX_SMEM))
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 4096], metavar="N")
    parser.add_argument("--width", type=int, default=64, metavar="D", help="of a head (default: 64)")
    parser.add_argument("--bias", action="store_true", help="with a position bias in float32 and a dense mask")
    parser.add_argument("--padding", action="store_true", help="with a mask of padding keys")
    parser.add_argument("--received", action="store_true", help="kernels with received attention")
    parser.add_argument("--dropout", action="store_true", help="kernels with dropout of weights")
    arguments = parser.parse_args()
    dropout = 0.1 if arguments.dropout else 0.0
    num_wrong = 0
    print(f"Triton {triton.__version__}, bfloat16, batch size {BATCH}, {HEADS} heads of width {arguments.width}")
    for capability in arguments.capabilities:
        limit = MAX_SMEM[capability]
        print(f"\ncompute capability {capability / 10}: {EXAMPLES[capability]}; {limit:,} bytes of shared memory")
        for scheme in arguments.schemes:
            for length in arguments.lengths:
                launches = (
                    received_launches
                    if arguments.received
                    else partial(list_launches, has_bias=arguments.bias, has_padding=arguments.padding)
                )
                shape = (length, arguments.width)
                for x in compile_scheme(partial(launches, scheme, *shape, dropout=dropout), capability):
                    is_too_large = x.smem > limit
                    num_wrong += is_too_large or x.loads_first
                    stack = f", {x.stack} bytes of stack" if x.stack else ""
                    instructions = " ".join(f"{count:.1f} ({mufu:.1f} MUFU)" for count, mufu in x.loops)
                    print(
                        f"  {scheme:15} N {length:<6} {x.kernel:27} {x.tile:10} {x.registers:4} registers{stack}, "
                        f"{x.smem:,} bytes of shared memory{': TOO MUCH' if is_too_large else ''}, {instructions} "
                        f"instructions per pair{', serialized' if x.is_serialized else ''}"
                        f"{': LOADS BEFORE IT STORES' if x.loads_first else ''}",
                        flush=True,
                    )
    return 1 if num_wrong else 0


def compile_scheme(launches: Callable[[], list[Launch]], capability: int) -> Iterator[Resources]:
    """Compile the kernels of these launches."""
    driver.set_active(OtherGpu(capability))
    for target, name, value in (
        (_compat.reserved_shared_memory, "works", lambda _: True),
        (Plan, "max_smem", MAX_SMEM[capability]),
        (Plan, "capability", divmod(capability, 10)),
        (cached_passes, "get_plan", build_plan),
        (decoding, "num_multiprocessors", lambda _: 132),
    ):
        setattr(target, name, value)
    for launch in launches():
        yield compile_launch(launch)


def list_launches(
    scheme: str, length: int, width: int, *, dropout: float, has_bias: bool, has_padding: bool
) -> list[Launch]:
    """Return the launches of a call whose tensors are on a GPU that is not here, and of one with a single query."""
    q, k, v, do = (meta((BATCH, length, HEADS, width)).transpose(1, 2) for _ in range(4))
    terms = position_tensors(scheme, length, length, width)
    masks = mask_tensors(length, length, has_bias=has_bias, has_padding=has_padding)
    max_offset, has_tables = (K, True) if scheme == "rpr" else (0, False)
    scalars: tuple[Any, ...] = (width**-0.5, 0.0, 0, False, -1, -1, scheme == "distance-aware", max_offset, has_tables)
    decode_scalars, scalars = (*scalars, 0.0, False, False), (*scalars, dropout, False, False)
    decode_tensors = {"q": q[:, :, :1], "k": k, "v": v, **position_tensors(scheme, 1, length, width)}
    decode_tensors |= mask_tensors(1, length, has_bias=has_bias, has_padding=has_padding)
    decode = DecodeCall(tuple(decode_tensors), decode_scalars, tuple(decode_tensors.values()))
    decode_launches = [bound.launch for bound in decode.forward_program.launches]
    if scheme == "rpr" and not masks:
        names = ("q", "k", "v", *terms)
        call = TableCall(names, scalars, (q, k, v, *terms.values()))
        backward = call._build_backward(do, tuple(name != "seed" for name in call.names))
        assert backward is not None
        return [bound.launch for bound in (*call.forward_program.launches, *backward.launches)] + decode_launches
    tensors = {"q": q, "k": k, "v": v, **terms, **masks, **seed_tensor(dropout)}
    if scheme == "rpr":
        tensors["relative_scores"] = meta((BATCH, HEADS, length, padded_rows(K)))
    plan = build_plan(*[tensors.get(name.removesuffix("_ptr")) for name in TENSOR_PARAMS], *scalars)
    needs = frozenset(name for name in DIFFERENTIABLE if name in tensors)
    forward = forward_launches(plan)
    backward_kernels = backward_launches(plan, do, None, False, False, needs)
    if scheme == "transformer-xl":
        backward_kernels |= first_chunk_launches(plan, q, do)
    names = ("dq", "dense_table", "dkv") if scheme == "transformer-xl" else ("dq", "dkv")
    return [forward["fwd"], *[backward_kernels[name] for name in names], *decode_launches]


def received_launches(scheme: str, length: int, width: int, *, dropout: float) -> list[Launch]:
    """Return the launches of a call that returns received attention, and of that of several plain layers at once."""
    q, k, v, do = (meta((BATCH, length, HEADS, width)).transpose(1, 2) for _ in range(4))
    terms = position_tensors(scheme, length, length, width)
    if scheme == "rpr":
        terms = {"relative_scores": meta((BATCH, HEADS, length, padded_rows(K)))}
    tensors = {"q": q, "k": k, "v": v, **terms, **seed_tensor(dropout)}
    scalars: tuple[Any, ...] = (width**-0.5, 0.0, 0, False, -1, -1, scheme == "distance-aware")
    scalars = (*scalars, K if scheme == "rpr" else 0)
    plan = build_plan(
        *[tensors.get(name.removesuffix("_ptr")) for name in TENSOR_PARAMS],
        *scalars,
        scheme == "rpr",
        dropout,
        True,
        False,
    )
    forward = forward_launches(plan)
    backward = backward_launches(plan, do, None, False, False, frozenset(DIFFERENTIABLE) & tensors.keys())
    launches = [forward["fwd"], forward["received"]]
    if scheme == "transformer-xl":
        backward |= first_chunk_launches(plan, q, do)
    launches += [backward[name] for name in (("dq",) if plan.received_in_dq else ("received", "dq"))]
    launches.append(backward["dkv"])
    return launches


def first_chunk_launches(plan: Plan, q: Tensor, do: Tensor) -> dict[str, Launch]:
    """Return the launches for the first chunk of queries, if there is a dense table."""
    size = min(max_chunk_size(plan, plan.m), plan.n)
    chunk = new_dz(plan, q, 0, size, plan.m, None, is_narrow=False)
    relative_q = meta((plan.heads, plan.batch, size, plan.width)).transpose(0, 1)
    d_table = meta((plan.heads, plan.table_rows + 2 * TABLE_PADDING, plan.width), torch.float32)
    return chunk_launches(plan, *chunk, d_table, relative_q, do, 0, False, True, stores_dz_tiles(plan))


def position_tensors(scheme: str, n: int, m: int, width: int) -> dict[str, Tensor]:
    """Return the tensors of a scheme's position terms, by name, for n queries and m keys."""
    if scheme == "distance-aware":
        return dict.fromkeys(("w", "sharpness"), meta((HEADS,), torch.float32))
    if scheme == "rpr":
        return dict.fromkeys(("key_table", "value_table"), meta((1, 2 * K + 1, width), torch.float32))
    if scheme in ("transformer-xl", "disentangled"):
        names = ("dense_table",) if scheme == "transformer-xl" else ("dense_table", "query_table")
        tables = dict.fromkeys(names, meta((HEADS, n + m - 1 + 2 * TABLE_PADDING, width)))
        return {"bias_uv": meta((2, HEADS, width), torch.float32), **tables}
    if scheme == "tener":
        return {
            "position_q": meta((BATCH, n, HEADS, width)).transpose(1, 2),
            "position_k": meta((1, 1, m, width)),
        }
    return {}


def mask_tensors(n: int, m: int, *, has_bias: bool, has_padding: bool) -> dict[str, Tensor]:
    """Return a position bias and a dense mask, and a mask of padding keys, by name, if they are wanted."""
    tensors = {}
    if has_bias:
        tensors["bias"] = meta((BATCH, HEADS, n, m), torch.float32)
        tensors["mask"] = meta((BATCH, 1, n, m), torch.bool)
    if has_padding:
        tensors["key_padding"] = meta((BATCH, m), torch.uint8)
    return tensors


def seed_tensor(dropout: float) -> dict[str, Tensor]:
    """Return the seed of dropout, by name, if there is dropout."""
    return {"seed": meta((1,), torch.int64)} if dropout else {}


def build_plan(*arguments: Any) -> Plan:
    return Plan(*arguments, device=torch.device("cuda"))


def meta(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def compile_launch(launch: Launch) -> Resources:
    """Compile a kernel as its launch does."""
    dtypes = dict.fromkeys(INPUT_DTYPE, torch.bfloat16) | OTHER_DTYPES
    pointers = {
        name: MockTensor(dtypes.get(name.removesuffix("_ptr"), torch.float32)) for _, name in launch.tensor_params
    }
    tile = launch.tile
    compiled = launch.kernel.warmup(**launch.arguments, **pointers, **tile.compile_options, grid=launch.grid)
    used = read_resources(compiled.asm["cubin"])
    return Resources(
        launch.kernel.fn.__name__,
        f"{tile.block_n}x{tile.block_m}",
        used["REG"],
        used["STACK"],
        compiled.metadata.shared + used["SHARED"],
        count_instructions(compiled.asm["cubin"], tile.block_n * tile.block_m / (32 * tile.num_warps)),
        is_serialized(compiled.asm["cubin"]),
        loads_first(compiled.asm["ptx"]),
    )


def read_resources(cubin: bytes) -> dict[str, int]:
    """Return the resources of a compiled kernel, by the names of NVIDIA's cuobjdump."""
    text = run_tool("cuobjdump", cubin, "--dump-resource-usage")
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED):(\d+)", text)}


def count_instructions(cubin: bytes, pairs_per_thread: float) -> tuple[tuple[float, float], ...]:
    """Return `Resources.loops` of the loops that have more than 96 instructions."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", run_tool("cuobjdump", cubin, "-sass"))
    addresses = [int(address, 16) for address, _ in lines]
    loops = []
    for address, (_, instruction) in zip(addresses, lines, strict=True):
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", instruction)
        start = int(target[1], 16) if target else address
        if start < address:
            body = [text for other, (_, text) in zip(addresses, lines, strict=True) if start <= other <= address]
            num_mufu = sum("MUFU" in text for text in body)
            loops += [(start, len(body), num_mufu)] if len(body) > 96 else []
    return tuple((count / pairs_per_thread, num_mufu / pairs_per_thread) for _, count, num_mufu in sorted(loops))


def is_serialized(cubin: bytes) -> bool:
    """Return whether there is a wait for each asynchronous matrix product (HGMMA), not one for several."""
    text = run_tool("cuobjdump", cubin, "-sass")
    return 0 < text.count("HGMMA") <= text.count("WARPGROUP.DEPBAR")


def loads_first(ptx: str) -> bool:
    """Return whether a kernel loads from the shared memory that it reserves before it first stores there.

    The instructions are those of `shared_memory.py`. The compiler's own have a tab after their names.
    """
    accesses = re.findall(r"\bst\.shared\.(?:v[24]\.)?b32 \[%\w+\]|\bld\.shared\.(?:b32|u16) %\w+, \[%\w+\];", ptx)
    return bool(accesses) and accesses[0].startswith("ld")


def run_tool(name: str, content: bytes, *options: str) -> str:
    """Run a program that is a part of Triton over a file with this content. Return what it prints."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
        process = subprocess.run([program, *options, file.name], capture_output=True, text=True, check=True)
    return process.stdout + process.stderr


if __name__ == "__main__":
    sys.exit(main())
