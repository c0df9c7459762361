"""The relative shift in shared memory (`transformer_xl_kernels.py`), in Triton's interpreter.

Without a GPU, kernels shift rows with `tl.gather`. Here they take the way of NVIDIA GPUs: the functions of
`shared_memory.py`, which are inline assembly, are replaced by functions of NumPy. The results must be those of
`tl.gather` up to rounding, which test_triton.py compares with float64. On a GPU, test_triton.py tests the assembly.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise import Disentangled, Scheme, TransformerXL, attend
from headwise.attention.triton_backend import cached_calls, launch, plan, transformer_xl
from tests.short_form import keep_short

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="emulates shared memory in Triton's interpreter")
HEADS, WIDTH = 2, 32

#: The scheme, the dtype, the numbers of queries and keys, and options of `attend`. Tiles are 64 × 64 in float16 and
#: 32 × 32 in float32.
CASES: dict[str, tuple[str, torch.dtype, int, int, dict[str, Any]]] = {
    "xl": ("xl", torch.float16, 150, 140, {}),
    "xl-even": ("xl", torch.float16, 192, 128, {}),
    "xl-one-tile": ("xl", torch.float16, 30, 40, {}),
    "xl-float32": ("xl", torch.float32, 80, 70, {}),
    "xl-causal": ("xl", torch.float16, 200, 200, {"causal": True}),
    "xl-causal-offset": ("xl", torch.float16, 90, 200, {"causal": True, "offset": 70}),
    "xl-window": ("xl", torch.float16, 260, 260, {"window": (70, 10)}),
    "xl-window-causal-float32": ("xl", torch.float32, 150, 150, {"window": (30, -1), "causal": True}),
    "xl-padded": ("xl", torch.float16, 130, 130, {"key_padding": True}),
    "xl-mask-bias": ("xl", torch.float16, 150, 200, {"mask": True, "position_bias": True}),
    "xl-bias-softcap": ("xl", torch.float16, 100, 150, {"position_bias": True, "softcap": 2.0}),
    "xl-cu_seqlens": ("xl", torch.float16, 200, 200, {"cu_seqlens": (0, 20, 150, 200), "causal": True}),
    "xl-received": ("xl", torch.float16, 100, 100, {"received": True}),
    "disentangled": ("disentangled", torch.float16, 100, 150, {}),
    "disentangled-window-float32": ("disentangled", torch.float32, 90, 90, {"window": (20, 20)}),
}


#: The functions of `shared_memory.py` that are replaced.
FUNCTIONS = (
    *("reserve_smem", "barrier", "round_product", "pack_pairs", "zero_like"),
    *("store_smem", "store_smem_eight", "load_smem", "load_eight", "store_eight"),
)


class SharedMemory:
    """Shared memory of a program in Triton's interpreter, which has no inline assembly and runs one program at a time.

    Threads run in any order between two barriers. So no byte may be stored and loaded, or stored twice, between them.
    """

    def __init__(self) -> None:
        self.size = size = 18 * 1024
        self.bytes = np.zeros(size, dtype=np.uint8)
        self.is_stored, self.is_loaded = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        self.num_loads = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions in the modules of the kernels."""
        from headwise.attention.triton_backend import (
            backward_delta_kernel,
            backward_dkv_kernel,
            backward_kernels,
            forward_kernels,
            transformer_xl_kernels,
        )

        kernels = (forward_kernels, backward_delta_kernel, backward_kernels, backward_dkv_kernel)
        for module in (*kernels, transformer_xl_kernels):
            for name in FUNCTIONS:
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, getattr(self, name))
        monkeypatch.setattr(plan.Plan, "is_fast", True)
        monkeypatch.setattr(launch.Options, "reserves_smem", False)

    def reserve_smem(self, options: Any, HAS_QUERIES: bool = False) -> Any:
        self.barrier()  # another program starts
        self.size = (17 if HAS_QUERIES and not options.query_table else 18) * 1024
        self.bytes[:] = 255  # NaN
        return to_tensor(np.zeros(1, dtype=np.int32))

    def barrier(self) -> int:
        self.is_stored[:] = self.is_loaded[:] = False
        return 0

    def round_product(self, z: Any, dtype: Any, options: Any) -> Any:
        values = z.handle.data
        if dtype.primitive_bitwidth == 32:
            return z
        return pack(values.astype(np.float16))

    def pack_pairs(self, x: Any) -> Any:
        return pack(x.handle.data)

    def zero_like(self, x: Any) -> Any:
        return to_tensor(np.zeros(x.shape, dtype=np.int32))

    def store_smem(self, address: Any, rounded: Any) -> None:
        self.store(address.handle.data, rounded.handle.data)

    def store_smem_eight(self, address: Any, *words: Any) -> None:
        self.store(address.handle.data, np.stack([word.handle.data for word in words], axis=-1))

    def store(self, addresses: Any, values: Any) -> None:
        by_address = np.ascontiguousarray(values).view(np.uint8).reshape(*addresses.shape, -1)
        self.check_alignment(addresses, by_address.shape[-1])
        places = addresses[..., None] + np.arange(by_address.shape[-1])
        assert len(np.unique(places)) == places.size, "two threads store a byte"
        assert not (self.is_stored[places] | self.is_loaded[places]).any(), "a barrier is missing before a store"
        self.bytes[places] = by_address
        self.is_stored[places] = True

    def load_smem(self, address: Any, dtype: Any) -> Any:
        size = dtype.primitive_bitwidth // 8
        self.check_alignment(address.handle.data, size)
        places = address.handle.data[..., None] + np.arange(size)
        assert not self.is_stored[places].any(), "a barrier is missing before a load"
        self.is_loaded[places] = True
        self.num_loads += 1
        numbers = self.bytes[places].view(np.float32 if size == 4 else np.float16)[..., 0]
        return to_tensor(numbers.astype(np.float32))

    def load_eight(self, address: Any, shift: Any) -> tuple[Any, ...]:
        addresses, shifts = address.handle.data, shift.handle.data
        self.check_alignment(addresses, 4)
        assert addresses.max() + 20 <= self.size
        assert np.isin(shifts, (0, 16)).all()
        places = (addresses + shifts // 8)[..., None] + np.arange(16)
        assert not self.is_stored[places].any(), "a barrier is missing before a load"
        self.is_loaded[addresses[..., None] + np.arange(20)] = True
        self.num_loads += 1
        words = self.bytes[places].view(np.int32)
        return tuple(to_tensor(np.ascontiguousarray(words[..., i])) for i in range(4))

    def store_eight(self, ptrs: Any, *words: Any) -> None:
        import triton.language as tl

        assert (ptrs.handle.data % 16 == 0).all(), "16 bytes are stored at once"
        ptrs = ptrs.to(tl.pointer_type(tl.int32), bitcast=True)
        for i, word in enumerate(words):
            tl.store(ptrs + i, word)

    def check_alignment(self, addresses: Any, size: int) -> None:
        assert (addresses % size == 0).all()
        assert addresses.min() >= 0
        assert addresses.max() + size <= self.size


def pack(values: Any) -> Any:
    """Return pairs of neighbors in float16 as integers of 32 bits."""
    return to_tensor(np.ascontiguousarray(values).view(np.int32))


def to_tensor(values: Any) -> Any:
    """Return a tensor of Triton's interpreter: a scalar if there is one value."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype = {"float32": tl.float32, "float16": tl.float16, "int32": tl.int32}[values.dtype.name]
    return tl.core.tensor(
        TensorHandle(values, dtype), dtype if values.size == 1 else tl.core.block_type(dtype, list(values.shape))
    )


def build_scheme(name: str) -> Scheme:
    torch.manual_seed(0)
    if name == "disentangled":
        return Disentangled(HEADS, WIDTH, max_distance=30, dim=20, std=1.0)
    scheme = TransformerXL(HEADS, WIDTH, dim=20)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.mul_(10.0)  # makes positions matter
    return scheme


def compute(scheme: Scheme, dtype: torch.dtype, n: int, m: int, options: dict[str, Any]) -> list[Tensor]:
    """Return the output and all gradients."""
    plan.clear_plans()
    cached_calls.clear_calls()
    generator = torch.Generator().manual_seed(n * 1000 + m)
    batch = 1 if "cu_seqlens" in options else 2
    leaves = [torch.randn(batch, HEADS, x, WIDTH, generator=generator).to(dtype).requires_grad_() for x in (n, m, m)]
    parameters: list[Tensor] = [*leaves, *scheme.parameters()]
    options = dict(options)
    if "mask" in options:
        options["mask"] = (torch.arange(n)[:, None] // 64 + torch.arange(m) // 64) % 2 == 0
    if "position_bias" in options:
        options["position_bias"] = torch.randn(1, HEADS, n, m, generator=generator).requires_grad_()
        parameters.append(options["position_bias"])
    if "key_padding" in options:
        options["key_padding"] = torch.tensor([m, m - 70])
    if "cu_seqlens" in options:
        options["cu_seqlens"] = torch.tensor(options["cu_seqlens"])
    has_received = options.pop("received", False)
    result: Any = attend(*leaves, scheme=scheme, backend="triton", return_received=has_received, **options)
    outputs: list[Tensor] = [result.output, result.received] if has_received else [result]
    losses = [(x.float() * torch.linspace(-1, 1, x.shape[-1])).square().sum() for x in outputs]
    loss = torch.stack(losses).sum()
    return [x.detach() for x in (*outputs, *torch.autograd.grad(loss, parameters))]


@pytest.mark.parametrize("case", keep_short(CASES, "xl", "xl-float32", "xl-causal-offset", "xl-window", "disentangled"))
def test_results_are_those_of_gather(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, dtype, n, m, options = CASES[case]
    monkeypatch.setattr(transformer_xl, "MAX_CHUNK_PAIRS", 1)  # chunks of 64 queries
    scheme = build_scheme(name)
    expected = compute(scheme, dtype, n, m, options)
    smem = SharedMemory()
    smem.install(monkeypatch)
    results = compute(scheme, dtype, n, m, options)
    assert smem.num_loads
    for actual, other in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, other, rtol=2**-10, atol=2**-14 * float(other.abs().max()))


@pytest.mark.parametrize("n", keep_short(("100", "64"), "100"))
def test_wide_heads_are_as_exact_as_the_reference(n: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk of queries is not a whole block."""
    monkeypatch.setattr(transformer_xl, "MAX_CHUNK_PAIRS", 1)
    width = 80
    torch.manual_seed(0)
    scheme = TransformerXL(HEADS, width, dim=20)
    inputs = [torch.randn(2, HEADS, length, width) for length in (int(n), 90, 90)]

    def run(dtype: torch.dtype, backend: Any) -> list[Tensor]:
        plan.clear_plans()
        cached_calls.clear_calls()
        owner = scheme.to(torch.float64 if dtype == torch.float64 else torch.float32)
        leaves = [x.half().to(dtype).requires_grad_() for x in inputs]
        output: Any = attend(*leaves, scheme=owner, backend=backend)
        grads = torch.autograd.grad(output.double().square().sum(), [*leaves, *owner.parameters()])
        return [x.detach().double() for x in (output, *grads)]

    results, low, exact = (
        run(*arguments)
        for arguments in (
            (torch.float16, "triton"),
            (torch.float16, "reference"),
            (torch.float64, "reference"),
        )
    )
    for index, (result, rounded, expected) in enumerate(zip(results, low, exact, strict=True)):
        tolerance = (2 if index == 0 else 3) * float((rounded - expected).abs().max())
        tolerance += 1e-3 * float(expected.abs().max())
        error = float((result - expected).abs().max())
        assert error <= tolerance, f"result {index}: error {error:.1e}, allowed {tolerance:.1e}"
