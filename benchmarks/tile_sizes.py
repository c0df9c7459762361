"""Time the kernels with other tile sizes than those of `headwise/attention/triton_backend/tile_sizes.py`, on a GPU.

    python benchmarks/tile_sizes.py --out tiles.jsonl
    python benchmarks/tile_sizes.py --out tiles.jsonl --schemes plain rpr --shapes 2x16/4x4096x128 --kernels fwd
    python benchmarks/tile_sizes.py --out tiles.jsonl --table          # print what was measured

A shape is batch × query heads / key heads × tokens × width. A tile is queries × keys, warps and stages. All variants
are compiled in parallel processes first. Times are those of the kernel alone (torch's profiler), in microseconds, in
bfloat16 with tensors of layout [B, N, H, d]. A variant whose line exists is not measured again.
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import headwise as hw
from headwise.attention.triton_backend import cached_calls
from headwise.attention.triton_backend import problem as problem_module
from headwise.attention.triton_backend.launch import Tile
from headwise.attention.triton_backend.plan import clear_plans

KERNELS = {"fwd": "fwd_kernel", "dq": "bwd_dq_kernel", "dkv": "bwd_dkv_kernel"}
#: Tiles to try, by kernel: queries, keys, warps, stages.
TILES = {
    "fwd": [(128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 4, 2)],
    "dq": [(128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3)],
    "dkv": [(64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 2), (64, 128, 8, 1), (32, 64, 4, 3), (32, 128, 8, 2)],
}
#: Those of Transformer-XL, whose relative shift needs square tiles.
SQUARE_TILES = [(64, 64, warps, stages) for warps in (4, 8) for stages in (1, 2, 3)]
SHAPES = ("2x16/4x4096x128", "4x16/16x4096x64")
SCHEMES = ("plain", "distance-aware", "small w", "rpr", "tener", "transformer-xl")
REPEATS = 10

problems: Any = problem_module  # whose choice of tiles is replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results, a line of JSON each")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="SHAPE")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--jobs", type=int, default=14, help="processes that compile (default: 14)")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time; the next call continues")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    if not arguments.table:
        variants = [
            (scheme, shape, kernel, tile)
            for shape in arguments.shapes
            for scheme in arguments.schemes
            for kernel in arguments.kernels
            for tile in (None, *(SQUARE_TILES if scheme == "transformer-xl" else TILES[kernel]))
        ]
        measured = {result_key(result) for result in read_results(arguments.out)}
        variants = [variant for variant in variants if variant_key(variant) not in measured]
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            for _ in pool.imap_unordered(compile_variant, variants):
                pass
        with arguments.out.open("a") as file:
            for variant in variants:
                if time.monotonic() > end:
                    print("time is over; the same call continues")
                    break
                result = measure(variant)
                print(json.dumps(result), file=file, flush=True)
                print(describe(result), flush=True)
    print_table(read_results(arguments.out))


def variant_key(variant: Any) -> tuple[Any, ...]:
    scheme, shape, kernel, tile = variant
    return scheme, shape, kernel, tile


def result_key(result: dict[str, Any]) -> tuple[Any, ...]:
    tile = result["tile"]
    return result["scheme"], result["shape"], result["kernel"], None if tile is None else tuple(tile)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results that a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def set_tile(kernel: str, tile: tuple[int, ...] | None) -> None:
    """Use a tile for a kernel, or headwise's own."""
    clear_plans()
    cached_calls.clear_calls()
    original = getattr(problems.fastest_tile, "original", problems.fastest_tile)

    def choose(name: str, **options: Any) -> Tile:
        own: Tile = original(name, **options)
        return Tile(*tile) if tile is not None and name == kernel else own

    problems.fastest_tile = choose
    problems.fastest_tile.original = original


def build_step(scheme_name: str, shape: str) -> Any:
    """Return a function that computes attention and all gradients."""
    batch, heads_text, n, width = shape.split("x")
    heads, key_heads = map(int, heads_text.split("/"))
    torch.manual_seed(0)

    def randn(num_heads: int) -> Tensor:
        x = torch.randn(int(batch), int(n), num_heads, int(width), device="cuda", dtype=torch.bfloat16)
        return x.transpose(1, 2).requires_grad_()

    q, k, v, d_output = (randn(num_heads) for num_heads in (heads, key_heads, key_heads, heads))
    schemes: dict[str, Any] = {
        "plain": lambda: hw.Plain(),
        "distance-aware": lambda: hw.DistanceAware(heads),
        "small w": lambda: hw.DistanceAware(heads),
        "rpr": lambda: hw.RelativePositions(heads, int(width), k=16),
        "tener": lambda: hw.Tener(heads, int(width)),
        "transformer-xl": lambda: hw.TransformerXL(heads, int(width)),
    }
    scheme = schemes[scheme_name]().cuda()
    if scheme_name == "small w":
        torch.nn.init.zeros_(scheme.w)
    inputs = [q, k, v, *scheme.parameters()]

    def step() -> None:
        output = hw.attend(q, k, v, scheme=scheme, backend="triton")
        torch.autograd.grad(output, inputs, d_output)

    return step


def compile_variant(variant: Any) -> None:
    """Compile the kernels of a variant. Failures are reported when it is measured."""
    scheme, shape, kernel, tile = variant
    try:
        set_tile(kernel, None)
        build_step(scheme, "1x4/4x128x64")()  # self-tests run with headwise's own tiles
        set_tile(kernel, tile)
        build_step(scheme, shape)()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{scheme} {shape} {kernel} {tile}: {type(error).__name__}", flush=True)


def measure(variant: Any) -> dict[str, Any]:
    """Return the time of a kernel in microseconds, or the error."""
    scheme, shape, kernel, tile = variant
    result: dict[str, Any] = {"scheme": scheme, "shape": shape, "kernel": kernel, "tile": tile}
    try:
        set_tile(kernel, None)
        build_step(scheme, "1x4/4x128x64")()
        set_tile(kernel, tile)
        step = build_step(scheme, shape)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(REPEATS):
                step()
            torch.cuda.synchronize()
    except Exception as error:
        return result | {"error": f"{type(error).__name__}: {str(error)[:100]}"}
    total = sum(event.self_device_time_total for event in profiler.key_averages() if event.key == KERNELS[kernel])
    return result | {"microseconds": total / REPEATS}


def describe(result: dict[str, Any]) -> str:
    tile = "own" if result["tile"] is None else "x".join(map(str, result["tile"]))
    value = result.get("error") or f"{result['microseconds']:.0f} µs"
    return f"{result['shape']:18} {result['scheme']:15} {result['kernel']:4} {tile:12} {value}"


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the own and the fastest tile of each kernel."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for result in results:
        if result.get("microseconds"):
            groups.setdefault((result["shape"], result["scheme"], result["kernel"]), []).append(result)
    for group in groups.values():
        own = [x for x in group if x["tile"] is None]
        print(" | ".join(describe(x) for x in (*own, min(group, key=lambda x: x["microseconds"]))))


if __name__ == "__main__":
    main()
