"""Compile the kernels of usual calls before their first use, and the C++ code of cached calls.

Triton compiles a kernel for each combination of scheme, precision, head width and kind of length. This takes seconds
for each, and minutes for all. The compiled kernels are kept in Triton's cache.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context

import torch

from headwise import _compat
from headwise.attention.attend import attend, explain
from headwise.attention.schemes import SCHEMES, make_scheme
from headwise.errors import UserError, first_line

logger = logging.getLogger(__name__)

#: What runs the self-test of the C++ code. It compiles a few kernels.
NATIVE_CHECK = "import sys; from headwise.attention.warm_up import native_works; sys.exit(not native_works())"
NATIVE_CHECK_SECONDS = 300

#: Arguments of schemes that have no default value. Kernels do not depend on them.
SCHEME_OPTIONS = {"rpr": {"k": 16}}


@dataclass(frozen=True)
class WarmUpCase:
    """A call whose kernels are compiled: forward and backward, and if it is causal the forward pass of one query.

    Args:
        scheme: the name of the scheme.
        length: the number of queries and keys.
        heads: the number of heads.
        head_dim: their width.
        dtype: the precision.
        causal: whether queries see only keys before them.
        padded: whether there is a mask of padding.
        device: the device.
    """

    scheme: str
    length: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    padded: bool
    device: str = "cuda"

    def __str__(self) -> str:
        form = ", causal" * self.causal + ", padded" * self.padded
        return f"{self.scheme}, {self.length} tokens, width {self.head_dim}, {str(self.dtype)[6:]}{form}"

    def run(self) -> None:
        """Run the call twice: cached calls compile other code for the second one."""
        options = SCHEME_OPTIONS.get(self.scheme, {})
        scheme = make_scheme(SCHEMES[self.scheme], heads=self.heads, head_dim=self.head_dim, **options).to(self.device)
        shape = (2, self.heads, self.length, self.head_dim)
        q, k, v = (torch.randn(shape, device=self.device, dtype=self.dtype, requires_grad=True) for _ in range(3))
        padding = torch.ones(shape[0], self.length, dtype=torch.bool, device=self.device) if self.padded else None
        leaves = [q, k, v, *(x for x in scheme.parameters() if x.requires_grad)]
        for _ in range(2):
            output = attend(q, k, v, scheme=scheme, causal=self.causal, key_padding=padding, backend="triton")
            torch.autograd.grad(output.sum(), leaves, allow_unused=True)
        if self.causal:  # decoding with a cache
            with torch.no_grad():
                attend(q[:, :, :1], k, v, scheme=scheme, causal=True, backend="triton")


def list_cases(
    schemes: Sequence[str], lengths: Sequence[int], heads: int, head_dims: Sequence[int], dtypes: Sequence[torch.dtype]
) -> list[WarmUpCase]:
    """Return the calls of all combinations, with and without padding, and without and with a causal mask.

    Raises:
        UserError: a scheme is not known, or a number is not positive.
    """
    for name in schemes:
        if name not in SCHEMES:
            raise UserError(f"--schemes: {name} is no scheme; expected one of {', '.join(SCHEMES)}")
    for option, numbers in (("--lengths", lengths), ("--heads", [heads]), ("--head-dims", head_dims)):
        if any(number < 1 for number in numbers):
            raise UserError(f"{option} must be at least 1, got {min(numbers)}")
    forms = [(False, False), (False, True), (True, False)]
    return [
        WarmUpCase(scheme, length, heads, head_dim, dtype, causal, padded)
        for scheme, length, head_dim, dtype, (causal, padded) in product(schemes, lengths, head_dims, dtypes, forms)
    ]


def check_gpu() -> None:
    """Check that this machine has a GPU with kernels.

    Raises:
        UserError: it has none, with the reason.
    """
    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU; there is nothing to compile: on a CPU, attention runs without kernels")
    q = torch.zeros(1, 1, 64, 64, device="cuda", dtype=torch.float16)
    choice = explain(q, q, q, scheme=make_scheme(SCHEMES["distance-aware"], heads=1, head_dim=64).cuda())
    if choice.backend != "triton":
        raise UserError(f"there is nothing to compile: attention uses {choice}")


def compile_cases(cases: Sequence[WarmUpCase], processes: int) -> Iterator[tuple[WarmUpCase, str]]:
    """Run cases in several processes. Yield each with its error, which is empty if it ran."""
    with ProcessPoolExecutor(min(processes, len(cases)), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(case.run): case for case in cases}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], "" if error is None else f"{type(error).__name__}: {error}"


def build_native() -> None:
    """Compile the C++ code of cached calls, and log what happened. Code that does not work on this GPU is deleted."""
    from headwise.attention.triton_backend import native

    if native.load() is not None:
        logger.info("C++ code of cached calls: built before")
        return
    logger.info("compiling the C++ code of cached calls, about a minute")
    try:
        native.build()
        check_native()
    except (RuntimeError, OSError) as error:
        native.remove()
        reason = first_line(error)
        logger.warning(
            "C++ code of cached calls: not used (%s); Python launches kernels, with the same results", reason
        )


def check_native() -> None:
    """Run the self-test of the C++ code in another process, which may crash or hang.

    Raises:
        RuntimeError: the code does not work.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-c", NATIVE_CHECK], timeout=NATIVE_CHECK_SECONDS, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"its self-test took more than {NATIVE_CHECK_SECONDS} seconds") from None
    if process.returncode:
        raise RuntimeError("its self-test failed")


def native_works() -> bool:
    """Return whether the C++ code of cached calls can be used on this GPU."""
    from headwise.attention.triton_backend import native

    return native.load_for_gpu() is not None and _compat.native_launches.works(torch.device("cuda", 0))
