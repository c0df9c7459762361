"""benchmarks/exactness.py: errors of all backends in float32, and a page with them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "exactness.py"


def test_errors_of_all_backends_are_below_the_limits(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    page = tmp_path / "numbers.md"
    command = [sys.executable, str(SCRIPT), "--cases", "8", "--triton-cases", "2", "--out", str(page)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    text = page.read_text(encoding="utf-8")
    assert "| `blockwise` | 8 | " in text
    assert re.search(r"\| `triton` \| [2-8] \| ", text), "2 cases in Triton's interpreter, up to 8 on a GPU"
    assert text in process.stdout
