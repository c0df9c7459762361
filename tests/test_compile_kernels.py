"""`benchmarks/compile_kernels.py`: the kernels fit into the shared memory of GPUs that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "compile_kernels.py"


@pytest.mark.long
@pytest.mark.parametrize(("capability", "width"), [("86", "128"), ("90", "64")])
def test_kernels_fit_into_shared_memory(capability: str, width: str, tmp_path: Path) -> None:
    options = ["--capabilities", capability, "--schemes", "distance-aware", "rpr", "--lengths", "600", "--width", width]
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(SCRIPT), *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    kernels = [line.split()[3] for line in result.stdout.splitlines() if line.startswith("  ")]
    assert {"fwd_kernel", "bwd_dq_kernel", "bwd_dkv_kernel"} <= set(kernels)
