"""Self-tests of the Triton backend on the user's GPU: tiny problems, compared with the reference.

`headwise._compat` runs them at the first use of fast paths that rely on private parts of Triton.
"""

import torch
from torch import Tensor

from headwise.attention.attend import Backend, attend
from headwise.attention.schemes import DistanceAware, Plain, Scheme, TransformerXL
from headwise.attention.triton_backend.cached_calls import clear_calls
from headwise.attention.triton_backend.plan import clear_plans

LENGTH, HEAD_DIM = 48, 16

#: Largest difference, relative to the largest value. Float16 rounds by 5e-4; a wrong argument gives errors of 1.
TOLERANCE = 0.02


def check_direct_launches(device: torch.device) -> None:
    """Check launches of compiled kernels: from the second call on, kernels are launched directly.

    Raises:
        RuntimeError: a result differs from the reference.
    """
    compare_with_reference(Plain(), device)


def check_reserved_shared_memory(device: torch.device) -> None:
    """Check the kernels of Transformer-XL, which reserve shared memory.

    Raises:
        RuntimeError: a result differs from the reference.
    """
    with torch.random.fork_rng(devices=[]):  # the user's random numbers stay the same
        scheme = TransformerXL(heads=1, head_dim=HEAD_DIM)
    compare_with_reference(scheme.to(device), device)


def check_native_launches(device: torch.device) -> None:
    """Check cached calls in C++, and their backward pass, which another thread runs.

    Raises:
        RuntimeError: a result differs from the reference.
    """
    with torch.random.fork_rng(devices=[]):
        scheme = DistanceAware(heads=1)
    compare_with_reference(scheme.to(device), device, with_gradients=True)


def compare_with_reference(scheme: Scheme, device: torch.device, *, with_gradients: bool = False) -> None:
    """Compare three calls of the Triton backend with the reference.

    Raises:
        RuntimeError: a result differs.
    """
    numbers = torch.arange(LENGTH * HEAD_DIM, dtype=torch.float32, device=device).view(1, 1, LENGTH, HEAD_DIM)
    with torch.set_grad_enabled(with_gradients), torch.autocast(device.type, enabled=False):
        q, k, v = (torch.sin(numbers * step).half().requires_grad_(with_gradients) for step in (0.7, 1.1, 1.7))
        leaves = [q, k, v, *scheme.parameters()] if with_gradients else []

        def compute(backend: Backend, dtype: torch.dtype) -> list[Tensor]:
            output = attend(q.to(dtype), k.to(dtype), v.to(dtype), scheme=scheme, backend=backend)
            grads = torch.autograd.grad(output, leaves, output.detach()) if leaves else ()
            return [x.detach().float() for x in (output, *grads)]

        expected = compute("reference", torch.float32)
        try:
            for _ in range(3):
                for result, correct in zip(compute("triton", torch.float16), expected, strict=True):
                    error = float((result - correct).abs().max() / correct.abs().max())
                    if not error <= TOLERANCE:
                        raise RuntimeError(f"the relative error of a tiny problem is {error:.1e}")
        except BaseException:
            clear_plans()  # they contain launches that do not work
            clear_calls()
            raise
