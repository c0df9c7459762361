"""The tests that use a Ray cluster, each file in a process of its own.

Ray runs native threads in the process that uses a cluster. If they end the process, the file is run again. Tests that
fail are not.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.studies.ray_cluster import why_no_cluster

TESTS = Path(__file__).parent

#: How often a file is run if its process dies.
MAX_ATTEMPTS = 3


@pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster())
@pytest.mark.parametrize(
    "file", ["studies/ray_studies.py", pytest.param("training/jobs/ray_jobs.py", marks=pytest.mark.long)]
)
def test_in_its_own_process(file: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    report = tmp_path / "report.xml"  # pytest writes it at its end
    options = [f"--{form}" for form in ("long", "slow") if pytestconfig.getoption(form)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for _ in range(MAX_ATTEMPTS):
        process = subprocess.run(
            [*command, str(TESTS / file)], cwd=TESTS.parent, env=environment, capture_output=True, text=True
        )
        if report.is_file():
            break
        last_lines = "\n".join((process.stdout + process.stderr).splitlines()[-40:])
        warnings.warn(f"{file}: its process died with exit code {process.returncode}\n{last_lines}", stacklevel=1)
    assert process.returncode == 0, process.stdout + process.stderr
