"""Self-tests of the Triton backend on the user's GPU: tiny problems, compared with the reference.

`headwise._compat` runs them at the first use of ways that rely on private parts of Triton.
"""

import torch

from headwise.attention.attend import attend
from headwise.attention.schemes import Plain, Scheme, TransformerXL
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


def compare_with_reference(scheme: Scheme, device: torch.device) -> None:
    """Compare three calls of the Triton backend with the reference.

    Raises:
        RuntimeError: a result differs.
    """
    numbers = torch.arange(LENGTH * HEAD_DIM, dtype=torch.float32, device=device).view(1, 1, LENGTH, HEAD_DIM)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        q, k, v = (torch.sin(numbers * step).half() for step in (0.7, 1.1, 1.7))
        expected = attend(q.float(), k.float(), v.float(), scheme=scheme, backend="reference")
        try:
            for _ in range(3):
                output = attend(q, k, v, scheme=scheme, backend="triton").float()
                error = float((output - expected).abs().max() / expected.abs().max())
                if not error <= TOLERANCE:
                    raise RuntimeError(f"the relative error of a tiny problem is {error:.1e}")
        except BaseException:
            clear_plans()  # they contain launches of the way that does not work
            clear_calls()
            raise
