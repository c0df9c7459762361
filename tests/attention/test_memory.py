"""Blockwise attention stores no N × M tensor: peak memory of forward and backward in a fresh process."""

import sys

import pytest

from tests.fresh_python import run_fresh_python
from tests.short_form import keep_short

SCHEMES = ("plain", "distance-aware", "rpr", "transformer-xl", "tener", "disentangled")

PROGRAM = """
import resource, torch, headwise as hw
from tests.attention.cases import make_scheme
n, heads, name, received = {n}, {heads}, {name!r}, {received}
scheme = make_scheme(name, heads, 64, dtype=torch.float32)
q, k, v = (torch.randn(1, heads, n, 64, requires_grad=True) for _ in range(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
extras = dict(return_received=received, return_weight_norms=received, return_lse=received)
result = hw.attend(q, k, v, scheme=scheme, backend="blockwise", **extras)
sum(x.square().sum() for x in (result if received else (result,)) if x is not None).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_mib(**parameters: object) -> float:
    """Return the peak resident memory beyond the inputs. On Linux ru_maxrss is in KiB."""
    return int(run_fresh_python(PROGRAM.format(**parameters))) / 1024


@pytest.mark.short_form("values")
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("received", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("name", keep_short(SCHEMES, "distance-aware"))
def test_memory_is_not_quadratic_in_length(name: str, received: bool) -> None:
    """One map of 4096 × 4096 for two heads is 128 MiB in float32; a backward pass with whole maps stores several."""
    assert peak_mib(n=4096, heads=2, name=name, received=received) < 128


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_16384_tokens_fit_in_2_gib() -> None:
    assert peak_mib(n=16_384, heads=4, name="distance-aware", received=True) < 2048
