"""Blockwise attention holds no N × M tensor: peak memory of a fresh process, forward and backward."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch, headwise as hw
from tests.attention.cases import make
n, heads, name, received = {n}, {heads}, {name!r}, {received}
scheme = make(name, heads, 64, dtype=torch.float32)
q, k, v = (torch.randn(1, heads, n, 64, requires_grad=True) for _ in range(3))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
more = dict(return_received=received, return_weight_norms=received, return_lse=received)
result = hw.attend(q, k, v, scheme=scheme, backend="blockwise", **more)
sum(x.square().sum() for x in (result if received else (result,))).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_mib(**settings: object) -> float:
    """Peak resident memory beyond the inputs. On Linux ru_maxrss is in KiB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(**settings)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
@pytest.mark.parametrize("received", [False, True])
@pytest.mark.parametrize("name", ["plain", "distance-aware", "rpr", "transformer-xl", "tener"])
def test_memory_grows_with_length_not_its_square(name: str, received: bool) -> None:
    """One map of 4096 × 4096 for two heads is 128 MiB in float32; a whole-map backward pass holds several."""
    assert peak_mib(n=4096, heads=2, name=name, received=received) < 128


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_sixteen_thousand_tokens_fit_in_two_gibibytes() -> None:
    assert peak_mib(n=16_384, heads=4, name="distance-aware", received=True) < 2048
